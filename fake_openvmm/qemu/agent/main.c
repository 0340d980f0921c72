/* Init of a real guest that stands behind the front of the fake OpenVMM (contract openvmm 6). */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "guest.h"

enum { HIGH_WATER = 2 << 20, WATCHED = 4 };

static void pass_on(struct work_event *event) {
    if (event->size)
        agent->output(event->stream, event->data, event->size);
    else
        agent->ended(event->category, event->status);
}

static void reap_adopted(void) {
    siginfo_t one;
    for (;;) {
        one.si_pid = 0;
        if (waitid(P_ALL, 0, &one, WEXITED | WNOHANG | WNOWAIT) || !one.si_pid || one.si_pid == work.pid)
            return;
        waitpid(one.si_pid, NULL, 0);
    }
}

static int patience(void) {
    if (!work.pid || !work.deadline)
        return -1;
    int64_t left = work.deadline - now_ms();
    return left < 0 ? 0 : left > 60000 ? 60000 : (int)left;
}

/* One turn: the session if there is one, and the workload if one runs. */
static void turn(void) {
    struct pollfd watched[WATCHED];
    unsigned count = 0;
    if (session_fd() >= 0)
        watched[count++] =
            (struct pollfd){session_fd(), (short)(POLLIN | (session_waiting() ? POLLOUT : 0)), 0};
    int held = session_waiting() > HIGH_WATER;
    int ends[] = {work.watch, held ? -1 : work.out, held ? -1 : work.err};
    for (unsigned i = 0; work.pid && i < 3; i++)
        if (ends[i] >= 0)
            watched[count++] = (struct pollfd){ends[i], POLLIN, 0};
    if (poll(watched, count, patience()) < 0 && errno != EINTR)
        power_refuse("poll", "%s", strerror(errno));
    if (work.pid && work.deadline && now_ms() >= work.deadline) {
        work.deadline = 0;
        work_kill(TIMED_OUT);
    }
    /* The session comes last: it may end the workload whose descriptors were looked at, and start another. */
    for (unsigned i = count; i-- > 0;) {
        struct work_event event;
        if (!watched[i].revents)
            continue;
        if (watched[i].fd == session_fd())
            session_serve(watched[i].revents & (POLLIN | POLLERR), watched[i].revents & POLLOUT);
        else if (work.pid && work_serve(watched[i].fd, &event))
            pass_on(&event);
    }
    reap_adopted();
}

static void console_output(int stream, const uint8_t *data, size_t size) {
    struct text line = {0};
    report_begin(&line, "console");
    report_text(&line, "text", data, size);
    report_number(&line, "stream", stream);
    report_end(&line);
}

static _Noreturn void console_ended(const char *category, int status) {
    (void)category;
    boot_leave();
    power_off(status);
}

static void nothing(void) {}

static void no_data(const uint8_t *payload, uint32_t length) {
    (void)payload;
    (void)length;
}

static const struct agent console = {nothing, no_data, console_output, console_ended};

/* A guest without a managed agent: with layers its entrypoint runs once, without it has nothing to do. */
static void run_once(void) {
    const char *arguments[MOST_WORDS + 2];
    struct request request = {.argument = arguments, .inherits = 1};
    int error;
    if (!boot.tokens.layered)
        power_off(0);
    arguments[0] = boot.tokens.entrypoint;
    memcpy(arguments + 1, boot.tokens.argument, sizeof *arguments * boot.tokens.arguments);
    arguments[1 + boot.tokens.arguments] = NULL;
    agent = &console;
    if (work_start(&request, 0, &error))
        console_ended("exit", REFUSED);
    while (work.pid)
        turn();
}

int main(void) {
    static const struct timespec tenth = {0, 100 * 1000 * 1000};
    power_open();
    boot_all();
    if (!boot.tokens.managed)
        run_once();
    machine_at("guest_attach");
    agent = boot.adapter ? &adapter_agent : &managed_agent;
    session_open();
    for (long left = machine_number("attach_delay_ms", 0); left > 0; left -= 100)
        nanosleep(&tenth, NULL);
    if (!machine_flag("never_attaches"))
        session_attach();
    for (;;)
        turn();
}
