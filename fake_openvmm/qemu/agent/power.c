/* The two ports of the machine that the contract names: 0xe9 takes text, 0x604 the status that ends the guest. */
#include <stdarg.h>
#include <stdio.h>
#include <sys/io.h>
#include <sys/reboot.h>
#include <unistd.h>

#include "guest.h"

enum { PORT_TEXT = 0xe9, PORT_STATUS = 0x604 };

void power_open(void) {
    if (iopl(3))
        reboot(RB_AUTOBOOT); /* without its ports a guest can't say anything */
}

void power_say(const char *text) {
    while (*text)
        outb((unsigned char)*text++, PORT_TEXT);
}

_Noreturn void power_off(int status) {
    sync();
    outb((unsigned char)status, PORT_STATUS);
    for (;;)
        pause();
}

_Noreturn void power_refuse(const char *stage, const char *format, ...) {
    char reason[512], said[128];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    snprintf(said, sizeof said, "NVX-MANAGED-ERROR: stage=%s status=%d\n", stage, REFUSED);
    power_say(said);
    struct text line = {0};
    report_begin(&line, "refused");
    report_text(&line, "stage", stage, __builtin_strlen(stage));
    report_text(&line, "reason", reason, __builtin_strlen(reason));
    report_end(&line);
    work_abandon();
    boot_leave();
    power_off(REFUSED);
}
