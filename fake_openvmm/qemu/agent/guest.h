/* What the parts of the agent share: the machine that it was told of, its ports, its workload. */
#ifndef NVX_GUEST_H
#define NVX_GUEST_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "json.h"
#include "nvxc.h"
#include "tokens.h"

enum { REFUSED = 125 };

/* machine.c: what the VM monitor says of this machine beside the command line, in /nvx.conf. */
void machine_read(void);
uint64_t machine_address(uint64_t base); /* where a slot of the contract is here; 0 without a device */
int machine_flag(const char *name);
long machine_number(const char *name, long otherwise);
/* A point at which the machine may be told to end, to panic or to hang. */
void machine_at(const char *point);

/* power.c: the two ports, and the ends of a guest. */
void power_open(void);
void power_say(const char *text);                                         /* port 0xe9 */
_Noreturn void power_off(int status);                                     /* port 0x604 */
_Noreturn void power_refuse(const char *stage, const char *format, ...) /* says why, leaves, 125 */
    __attribute__((format(printf, 2, 3)));

/* report.c: JSON lines for the VM monitor's evidence. */
void report_open(void);
int port_open(const char *name); /* -1 if it doesn't come */
void report_begin(struct text *line, const char *kind);
void report_end(struct text *line); /* writes and frees it */
void report_number(struct text *line, const char *name, int64_t value);
void report_text(struct text *line, const char *name, const void *at, size_t length);

/* boot.c: everything up to the point where an agent can start. */
struct boot {
    struct tokens tokens;
    int adapter;         /* whether the initramfs brings the test adapter's agent */
    const char *root;    /* of the workloads */
    char account[64];    /* their user's name */
    char home[256];      /* and home */
    struct text facts;   /* members of a JSON object, without braces */
};
extern struct boot boot;
void boot_all(void);
void boot_leave(void); /* unmounts everything, so that it is clean */

/* work.c: the one workload. */
struct request {
    uint32_t timeout_ms;
    const char **argument; /* ends with NULL */
    const char *directory; /* NULL for / */
    const char **variable; /* ends with NULL; NULL for the default ones alone */
    int inherits;
};
enum { AT_LAUNCH = 1, AT_DIRECTORY, AT_PROGRAM };
enum { CANCELLED = 1, TIMED_OUT = 2, TOO_MUCH = 4 };
struct work {
    pid_t pid; /* 0 if none runs */
    int out, err, watch, status_pipe;
    int reasons;
    int status; /* -1 until the leader has ended */
    size_t said;
    int64_t deadline; /* milliseconds, 0 for none */
    int limited;
};
extern struct work work;
/* Gives 0, or where it failed and errno. */
int work_start(const struct request *request, int limited, int *error);
void work_kill(int reason);
void work_abandon(void);
/* Reads what it has said. `stream` is 1 or 2; size 0: both have ended and `*category` and the status it gives are its end. */
struct work_event {
    int stream;
    const uint8_t *data;
    size_t size;
    const char *category;
    int status;
};
int work_serve(int readable, struct work_event *event);
int64_t now_ms(void);

/* session.c: NVXS on the control port. */
void session_open(void);
void session_attach(void);
void session_send(const void *data, size_t size); /* in as many records as it takes */
void session_send2(const void *head, size_t head_size, const void *data, size_t size);
void session_credit(uint32_t amount);
void session_flush(int patience_ms);
uint64_t session_epoch(void);
size_t session_waiting(void);
int session_fd(void);
void session_serve(int readable, int writable);

/* What either agent does: managed.c, adapter.c. */
struct agent {
    void (*reset)(void);
    void (*data)(const uint8_t *payload, uint32_t length);
    void (*output)(int stream, const uint8_t *data, size_t size);
    void (*ended)(const char *category, int status);
};
extern const struct agent managed_agent, adapter_agent;
extern const struct agent *agent;

/* mappings.c: a direct guest's table. */
int mappings_complete(void);
int mappings_follow(uint32_t first, uint32_t count);
int mappings_add(const struct nvxc_mapping *mapping); /* 0 or an errno, after which nothing more is taken */
void mappings_begin(void);                            /* one more request for them */

#endif
