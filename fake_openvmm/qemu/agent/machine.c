/* What the VM monitor says of this machine beside the command line: /nvx.conf, in a cpio after the initramfs.

   block BASE ADDRESS     a slot of the contract, and where its device is on this machine
   flag NAME              a way to misbehave that is on
   number NAME VALUE      one that has a value
   exit|panic|hang POINT VALUE   how the guest ends at a point */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <unistd.h>

#include "guest.h"

enum { MOST_LINES = 64 };

static struct {
    char what[16];
    char name[48];
    char value[32];
} lines[MOST_LINES];
static unsigned count;

void machine_read(void) {
    FILE *file = fopen("/nvx.conf", "r");
    char line[128];
    while (file && count < MOST_LINES && fgets(line, sizeof line, file)) {
        lines[count].value[0] = 0;
        if (sscanf(line, "%15s %47s %31s", lines[count].what, lines[count].name, lines[count].value) >= 2)
            count++;
    }
    if (file)
        fclose(file);
}

static const char *value(const char *what, const char *name) {
    for (unsigned i = 0; i < count; i++)
        if (!strcmp(lines[i].what, what) && !strcmp(lines[i].name, name))
            return lines[i].value;
    return NULL;
}

uint64_t machine_address(uint64_t base) {
    char name[32];
    snprintf(name, sizeof name, "0x%llx", (unsigned long long)base);
    const char *found = value("block", name);
    return found ? strtoull(found, NULL, 16) : 0;
}

int machine_flag(const char *name) { return value("flag", name) != NULL; }

long machine_number(const char *name, long otherwise) {
    const char *found = value("number", name);
    return found ? strtol(found, NULL, 10) : otherwise;
}

void machine_at(const char *point) {
    const char *status = value("exit", point);
    if (status) {
        work_abandon();
        boot_leave();
        power_off((int)strtol(status, NULL, 10));
    }
    if (value("panic", point)) {
        int trigger = open("/proc/sysrq-trigger", O_WRONLY | O_CLOEXEC);
        power_say("panic at the harness's request\n");
        if (trigger < 0 || write(trigger, "c", 1) != 1)
            power_refuse("panic", "no sysrq trigger");
    }
    if (value("hang", point)) {
        struct text line = {0};
        report_begin(&line, "guest_hangs");
        report_end(&line);
        for (;;)
            pause();
    }
}
