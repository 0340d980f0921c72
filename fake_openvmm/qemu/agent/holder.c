/* Becomes QEMU on behalf of a VM monitor, and never outlives it.

   The kernel kills this process when the thread that started it ends. If that thread had ended before the kernel was
   told, the other end of the lifeline is closed: nothing else holds it. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int count, char **argument) {
    if (count < 3)
        return 64;
    struct pollfd lifeline = {atoi(argument[1]), POLLIN, 0};
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) || fcntl(lifeline.fd, F_SETFD, FD_CLOEXEC) || poll(&lifeline, 1, 0) < 0)
        return 64;
    if (lifeline.revents)
        return 65;
    execv(argument[2], argument + 2);
    fprintf(stderr, "fake-openvmm: can't run %s: %s\n", argument[2], strerror(errno));
    return 66;
}
