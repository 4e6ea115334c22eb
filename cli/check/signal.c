/* SPDX-License-Identifier: MIT
 * A fault inside a kernel costs its case, not the run: SIGSEGV and its like in the calling thread jump back to the
 * tester. In a worker thread, or when a case hangs, the repro line is printed and the process ends. */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static struct {
    sigjmp_buf back;
    pthread_t thread;
    volatile sig_atomic_t armed;
    const char *volatile repro;
    int timeout;
} guard;

static void say(const char *text) {
    size_t left = strlen(text);
    while (left > 0) {
        ssize_t n = write(STDOUT_FILENO, text, left);
        if (n <= 0) return;
        text += n;
        left -= (size_t)n;
    }
}

static void on_signal(int number) {
    if (guard.armed && number != SIGALRM && pthread_equal(pthread_self(), guard.thread)) {
        guard.armed = 0;
        siglongjmp(guard.back, number);
    }
    say(number == SIGALRM ? "\nFAIL  a case did not end in time\n"
                          : "\nFAIL  a worker thread, or the tester, was stopped by a signal\n");
    say("  rerun: ");
    say(guard.repro ? guard.repro : "(outside a case)");
    say("\n");
    _exit(ATTN_CLI_FAILED);
}

void attn_cli_check_signals(int timeout_seconds) {
    static const int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM};
    static uint8_t stack[1 << 16];
    stack_t alternative = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&alternative, NULL);
    guard.timeout = timeout_seconds;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK | SA_NODEFER};
        sigaction(numbers[i], &action, NULL);
    }
}

int attn_cli_check_guarded(attn_status (*fn)(void *), void *arg, const char *repro, attn_status *status) {
    guard.repro = repro;
    guard.thread = pthread_self();
    alarm((unsigned)guard.timeout);
    int number = sigsetjmp(guard.back, 1);
    if (number == 0) {
        guard.armed = 1;
        *status = fn(arg);
    }
    guard.armed = 0;
    alarm(0);
    guard.repro = NULL;
    return number;
}
