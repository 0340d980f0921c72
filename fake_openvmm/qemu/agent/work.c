/* The one workload of a guest: in namespaces of its own, with the user, directory and variables that were asked for.

   With layers the workload is process 1 of its PID namespace (contract openvmm 3.6); without, a process 1 that only
   waits stands above it, so that a signal which it sends itself ends it. Either way its end is the end of everything
   that it started. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "guest.h"

enum { MOST_READ = 32768, MOST_SAID = 1048576, DEFAULTS = 6 };
enum { OUT, ERR, STATUS, TROUBLE, PIPES };

struct trouble {
    int stage;
    int error;
};

struct work work;

int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static const char **environment(const struct request *request) {
    static char defaults[DEFAULTS][512];
    static const char *entries[DEFAULTS + NVXC_MAX_VARIABLES + 1];
    unsigned count = 0, own = 0;
    if (request->inherits) {
        snprintf(defaults[0], sizeof *defaults, "PATH=/usr/sbin:/usr/bin:/sbin:/bin");
        snprintf(defaults[1], sizeof *defaults, "TERM=linux");
        snprintf(defaults[2], sizeof *defaults, "HOME=%s", boot.home);
        snprintf(defaults[3], sizeof *defaults, "USER=%s", boot.account);
        snprintf(defaults[4], sizeof *defaults, "LOGNAME=%s", boot.account);
        snprintf(defaults[5], sizeof *defaults, "PWD=%.500s", request->directory ? request->directory : "/");
        for (; count < DEFAULTS; count++)
            entries[count] = defaults[count];
    }
    for (; request->variable && request->variable[own]; own++) {
        size_t name = strcspn(request->variable[own], "=") + 1;
        unsigned place = 0;
        while (place < count && strncmp(entries[place], request->variable[own], name))
            place++;
        entries[place] = request->variable[own];
        count += place == count;
    }
    entries[count] = NULL;
    return entries;
}

static _Noreturn void give_up(int pipe, int stage) {
    const struct trouble trouble = {stage, errno};
    if (write(pipe, &trouble, sizeof trouble) < 0)
        _exit(REFUSED + 1);
    _exit(REFUSED);
}

static void become_workload(void) {
    if (!boot.tokens.has_identity)
        return;
    if (setgroups(0, NULL) || setresgid(boot.tokens.gid, boot.tokens.gid, boot.tokens.gid) ||
        setresuid(boot.tokens.uid, boot.tokens.uid, boot.tokens.uid))
        _exit(REFUSED);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

static _Noreturn void run_program(const struct request *request, int pipe) {
    become_workload();
    if (chdir(request->directory ? request->directory : "/"))
        give_up(pipe, AT_DIRECTORY);
    execve(request->argument[0], (char **)request->argument, (char **)environment(request));
    give_up(pipe, AT_PROGRAM);
}

/* Process 1 of a direct guest's workload: waits for the leader, whose status goes into the pipe. */
static _Noreturn void stand_above(pid_t leader, int pipe) {
    int status, ended;
    while ((ended = waitpid(-1, &status, 0)) != leader)
        if (ended < 0)
            _exit(REFUSED);
    _exit(write(pipe, &status, sizeof status) == sizeof status ? 0 : REFUSED);
}

static _Noreturn void child(const struct request *request, int pipes[PIPES][2]) {
    int out = pipes[OUT][1], err = pipes[ERR][1], pipe = pipes[TROUBLE][1];
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0 || dup2(null, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0)
        give_up(pipe, AT_LAUNCH);
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
        give_up(pipe, AT_LAUNCH);
    if (*boot.root && (chroot(boot.root) || chdir("/")))
        give_up(pipe, AT_LAUNCH);
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    if (boot.tokens.layered)
        run_program(request, pipe);
    pid_t leader = fork();
    if (leader < 0)
        give_up(pipe, AT_LAUNCH);
    if (!leader) {
        setsid();
        run_program(request, pipe);
    }
    for (int fd = 0; fd < 3; fd++)
        dup2(null, fd);
    close(pipe);
    stand_above(leader, pipes[STATUS][1]);
}

static int open_pipes(int pipes[PIPES][2]) {
    for (int i = 0; i < PIPES; i++)
        if (pipe2(pipes[i], O_CLOEXEC)) {
            while (i--) {
                close(pipes[i][0]);
                close(pipes[i][1]);
            }
            return -1;
        }
    return 0;
}

int work_start(const struct request *request, int limited, int *error) {
    int pipes[PIPES][2];
    if (open_pipes(pipes)) {
        *error = errno;
        return AT_LAUNCH;
    }
    pid_t pid = (pid_t)syscall(SYS_clone, CLONE_NEWPID | CLONE_NEWNS | SIGCHLD, 0, 0, 0, 0);
    if (!pid)
        child(request, pipes);
    struct trouble trouble = {AT_LAUNCH, errno};
    for (int i = 0; i < PIPES; i++)
        close(pipes[i][1]);
    /* A leader that runs has closed its end of this one by its exec. */
    int failed = pid < 0 || read(pipes[TROUBLE][0], &trouble, sizeof trouble) == sizeof trouble;
    close(pipes[TROUBLE][0]);
    if (failed) {
        for (int i = 0; i < TROUBLE; i++)
            close(pipes[i][0]);
        if (pid > 0)
            waitpid(pid, NULL, 0);
        *error = trouble.error;
        return trouble.stage;
    }
    work = (struct work){.pid = pid, .out = pipes[OUT][0], .err = pipes[ERR][0], .status_pipe = pipes[STATUS][0]};
    work.watch = (int)syscall(SYS_pidfd_open, pid, 0);
    work.status = -1;
    work.limited = limited;
    work.deadline = request->timeout_ms ? now_ms() + request->timeout_ms : 0;
    return 0;
}

void work_kill(int reason) {
    if (!work.pid || work.status >= 0)
        return;
    work.reasons |= reason;
    kill(work.pid, SIGKILL);
}

static void forget(void) {
    int descriptors[] = {work.out, work.err, work.watch, work.status_pipe};
    for (int i = 0; i < 4; i++)
        if (descriptors[i] >= 0)
            close(descriptors[i]);
    work = (struct work){0};
}

void work_abandon(void) {
    if (!work.pid)
        return;
    kill(work.pid, SIGKILL);
    if (work.status < 0)
        waitpid(work.pid, NULL, 0);
    forget();
}

static void reap(void) {
    int status, said;
    if (waitpid(work.pid, &status, WNOHANG) != work.pid)
        return;
    /* What a process 1 that stood above the leader has said of it. */
    if (read(work.status_pipe, &said, sizeof said) == sizeof said)
        status = said;
    work.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (WIFSIGNALED(status))
        work.status |= 1 << 8;
    close(work.watch);
    work.watch = -1;
}

static void name_end(struct work_event *event) {
    event->size = 0;
    if (work.reasons & CANCELLED)
        *event = (struct work_event){.category = "cancelled", .status = 137};
    else if (work.reasons & TIMED_OUT)
        *event = (struct work_event){.category = "timeout", .status = 124};
    else if (work.reasons & TOO_MUCH)
        *event = (struct work_event){.category = "output-limit", .status = 125};
    else
        *event = (struct work_event){.category = work.status >> 8 ? "signal" : "exit", .status = work.status & 0xff};
}

int work_serve(int readable, struct work_event *event) {
    static uint8_t piece[MOST_READ];
    if (readable == work.watch && work.watch >= 0)
        reap();
    int *end = readable == work.out ? &work.out : readable == work.err ? &work.err : NULL;
    if (end && *end >= 0) {
        ssize_t got = read(*end, piece, sizeof piece);
        if (got > 0) {
            if (work.limited && work.said + (size_t)got > MOST_SAID) {
                work_kill(TOO_MUCH);
                work.reasons |= TOO_MUCH;
                return 0;
            }
            work.said += (size_t)got;
            *event = (struct work_event){end == &work.out ? 1 : 2, piece, (size_t)got, NULL, 0};
            return 1;
        }
        close(*end);
        *end = -1;
    }
    if (work.status < 0 || work.out >= 0 || work.err >= 0)
        return 0;
    name_end(event);
    forget();
    return 1;
}
