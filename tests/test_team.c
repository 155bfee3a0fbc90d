/* SPDX-License-Identifier: Apache-2.0
 *
 * The threads of the library where they are hard to have: creation that fails, limits on processes and memory, callers
 * at the same time, forks in the middle, signals, cancelled callers. Always the same bits, SKL_OK, and nothing printed.
 * Linked with pthread_create wrapped. Most of it in forked children, which begin without threads.
 */
#define _GNU_SOURCE
#include "../src/cpu/team.h"
#include "streamkl/streamkl.h"
#include "test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROWS = 200, COLUMNS = 700, DIM = 32, THREADS = 8 }; /* enough work that all of them are wanted */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum {
    SANITIZED = 1
}; /* by allocators that take what memory they want, and hang in the child of a fork during calls */
#else
enum { SANITIZED = 0 };
#endif

/* ---------------------------------------------------------------------------------------------- creation --- */

static atomic_int created,
    refuse_after = INT32_MAX; /* threads made by the library or the test; most that may be made */

static atomic_int late; /* threads take so many seconds to come */
static void *(*late_start)(void *);

static void *start_late(void *data)
{
    sleep((unsigned)atomic_load(&late));
    return late_start(data);
}

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *data);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *data);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *data)
{
    if (atomic_fetch_add(&created, 1) >= atomic_load(&refuse_after))
        return EAGAIN;
    if (!atomic_load(&late))
        return __real_pthread_create(thread, attr, start, data);
    if (!late_start) /* they are all the library's, and begin alike */
        late_start = start;
    return __real_pthread_create(thread, attr, start_late, data);
}

/* Threads of this process; 0 where that cannot be told. */
static int tasks(void)
{
    int n = 0;
#if !defined(__SANITIZE_THREAD__) /* which has a thread of its own */
    DIR *all = opendir("/proc/self/task");
    for (struct dirent *one; all && (one = readdir(all));) n += one->d_name[0] != '.';
    if (all)
        closedir(all);
#endif
    return n;
}

/* ------------------------------------------------------------------------------------------------ a call --- */

static float a_s[ROWS * DIM], a_t[ROWS * DIM], b_s[COLUMNS * DIM], b_t[COLUMNS * DIM];

struct result {
    double value;
    float loss[ROWS], grad_a[ROWS * DIM], grad_b[COLUMNS * DIM];
};
static struct result expected;

static void fill(float *x, int n)
{
    for (int i = 0; i < n; i++) x[i] = (float)(0.3 * test_normal());
}

static struct skl_problem problem(int threads)
{
    struct skl_problem p = skl_linear(skl_matrix(SKL_F32, a_s, ROWS, DIM), skl_matrix(SKL_F32, b_s, COLUMNS, DIM),
                                      skl_matrix(SKL_F32, a_t, ROWS, DIM), skl_matrix(SKL_F32, b_t, COLUMNS, DIM));
    p.threads = threads;
    return p;
}

static struct skl_outputs outputs(struct result *r)
{
    struct skl_outputs out = skl_no_outputs();
    out.value = &r->value;
    out.loss = skl_vector(SKL_F32, r->loss, ROWS);
    out.s.a = skl_matrix(SKL_F32, r->grad_a, ROWS, DIM);
    out.s.b = skl_matrix(SKL_F32, r->grad_b, COLUMNS, DIM);
    return out;
}

static enum skl_status call(struct result *r, int threads, skl_progress progress, void *data)
{
    struct skl_problem p = problem(threads);
    struct skl_outputs out = outputs(r);
    p.progress = progress, p.progress_data = data;
    memset(r, KIT_CANARY, sizeof *r);
    return skl_value_and_grad(&p, &out);
}

static int same(const struct result *r)
{
    return memcmp(r, &expected, sizeof *r) == 0;
}

/* One call; 0 if it is right. */
static int wrong_call(int threads)
{
    struct result *r = malloc(sizeof *r);
    int wrong = call(r, threads, NULL, NULL) != SKL_OK || !same(r);
    free(r);
    return wrong;
}

/* --------------------------------------------------------------------------------------------- children --- */

/* What a child does with the number it is given: its exit code. */
typedef int child_work(int n);

/* In a child that may print nothing and must end by itself. */
static void in_child(const char *what, child_work *work, int n)
{
    int pipes[2], status = -1;
    char printed[256] = "";
    ssize_t length = 0, got;
    fflush(NULL);
    if (pipe(pipes))
        exit(1);
    pid_t child = fork();
    if (child == 0) {
        dup2(pipes[1], 1), dup2(pipes[1], 2);
        alarm(100);
        _exit(work(n));
    }
    close(pipes[1]);
    while ((got = read(pipes[0], printed + length, sizeof printed - 1 - (size_t)length)) > 0) length += got;
    close(pipes[0]);
    waitpid(child, &status, 0);
    test_context("%s, %d", what, n);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with status %#x", (unsigned)status);
    CHECK(length == 0, "it printed \"%s\"", printed);
}

static int creation_fails(int possible)
{
    atomic_store(&created, 0), atomic_store(&refuse_after, possible);
    if (wrong_call(THREADS))
        return 1;
    int want = possible < THREADS - 1 ? possible + 1 : THREADS - 1; /* one refusal is enough for a call */
    if (atomic_load(&created) != want)
        return 2;
    if (wrong_call(THREADS)) /* with those that there are, and another try */
        return 3;
    atomic_store(&refuse_after, INT32_MAX);
    if (wrong_call(THREADS) || (tasks() && tasks() != THREADS))
        return 4;
    atomic_store(&created, 0);
    return wrong_call(THREADS) || wrong_call(3) || wrong_call(THREADS) || atomic_load(&created) ? 5 : 0;
}

static size_t workspace_size(int threads)
{
    static struct result r;
    struct skl_problem p = problem(threads);
    struct skl_outputs out = outputs(&r);
    size_t bytes = 0;
    return skl_workspace_size(SKL_CALL_VALUE_AND_GRAD, &p, &out, &bytes) ? 0 : bytes;
}

/* Room for the call's workspace and so many megabytes more: a thread's stack is one. */
static int memory_is_short(int megabytes)
{
    long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%lld", &pages) != 1)
        return 0; /* cannot tell what is in use */
    fclose(f);
    rlim_t used = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE), room = workspace_size(THREADS) + (1 << 20);
    rlim_t most = used + room + ((rlim_t)megabytes << 20);
    struct rlimit limit = {most, most};
    return setrlimit(RLIMIT_AS, &limit) ? 2 : wrong_call(THREADS);
}

/* What is done on one thread in a millisecond waits for no other that takes seconds. */
static int threads_come_late(int seconds)
{
    struct timespec before, after;
    atomic_store(&late, seconds);
    clock_gettime(CLOCK_MONOTONIC, &before);
    if (wrong_call(THREADS) || wrong_call(3))
        return 1;
    clock_gettime(CLOCK_MONOTONIC, &after);
    if (after.tv_sec - before.tv_sec >= seconds - 1)
        return 2;
    sleep((unsigned)seconds);
    atomic_store(&late, 0);
    return wrong_call(THREADS) || atomic_load(&created) != THREADS - 1 ? 3 : 0; /* with those that have come by now */
}

/* The kernel does not count root's processes. */
static int processes_are_short(int more)
{
    struct rlimit limit = {(rlim_t)more, (rlim_t)more};
    if (getuid() == 0 && setuid(65534))
        return 2;
    return setrlimit(RLIMIT_NPROC, &limit) ? 3 : wrong_call(THREADS);
}
/* ---------------------------------------------------------------------------------------------- callers --- */

static void *call_often(void *data)
{
    int *wrong = data;
    for (int k = 0; k < (test_quick() ? 5 : 30); k++) *wrong += wrong_call(2 + k % 3);
    return NULL;
}

static int callers_at_once(int callers)
{
    pthread_t thread[16];
    int wrong[16] = {0}, all = 0;
    for (int k = 0; k < callers; k++)
        if (pthread_create(&thread[k], NULL, call_often, &wrong[k]))
            return 100;
    atomic_store(&refuse_after, callers + 10); /* not as many as they would like */
    for (int k = 0; k < callers; k++) pthread_join(thread[k], NULL), all += wrong[k];
    return all;
}

static atomic_int stop;

static void *call_until_stopped(void *data)
{
    (void)data;
    while (!atomic_load(&stop)) wrong_call(3);
    return NULL;
}

/* The child of a fork at any moment of another thread's call has threads of its own. */
static int fork_in_the_middle(int forks)
{
    pthread_t other;
    int bad = 0, status;
    pthread_create(&other, NULL, call_until_stopped, NULL);
    for (int k = 0; k < forks; k++) {
        usleep((useconds_t)(test_between(0, 500)));
        pid_t child = fork();
        if (child == 0) {
            alarm(60);
            _exit(wrong_call(3) || (tasks() && tasks() != 3));
        }
        bad += waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    atomic_store(&stop, 1);
    pthread_join(other, NULL);
    return bad;
}

static int fork_inside(void *data, double fraction)
{
    (void)fraction;
    int status;
    pid_t child = fork();
    if (child == 0)
        _exit(wrong_call(2)); /* a new call, not the parent's */
    *(int *)data += waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    return 0;
}

static int fork_in_a_callback(int threads)
{
    struct result *r = malloc(sizeof *r);
    int bad = 0;
    enum skl_status status = call(r, threads, fork_inside, &bad);
    bad += status != SKL_OK || !same(r);
    free(r);
    return bad;
}

/* ---------------------------------------------------------------------------------------------- signals --- */

static pthread_t handled_by;
static atomic_int handled;

static void handle(int signal)
{
    (void)signal;
    handled_by = pthread_self();
    atomic_fetch_add(&handled, 1);
}

/* While the program's only thread blocks a signal, nobody else takes it. */
static int signals_are_the_callers(int threads)
{
    struct sigaction action = {.sa_handler = handle};
    sigset_t set, pending;
    sigaction(SIGUSR1, &action, NULL);
    if (wrong_call(threads))
        return 1;
    sigemptyset(&set), sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    kill(getpid(), SIGUSR1);
    usleep(20000);
    sigpending(&pending);
    if (atomic_load(&handled) || !sigismember(&pending, SIGUSR1))
        return 2;
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    return atomic_load(&handled) == 1 && pthread_equal(handled_by, pthread_self()) ? 0 : 3;
}

static void *call_while_cancelled(void *data)
{
    pthread_cancel(pthread_self()); /* takes effect where a thread waits */
    *(int *)data = wrong_call(4) + 1;
    pthread_testcancel();
    return NULL;
}

static int cancelled_caller(int times)
{
    for (int k = 0; k < times; k++) {
        pthread_t thread;
        void *end;
        int returned = 0;
        pthread_create(&thread, NULL, call_while_cancelled, &returned);
        pthread_join(thread, &end);
        if (returned != 1 || end != PTHREAD_CANCELED || wrong_call(4))
            return 1;
    }
    return 0;
}

/* ------------------------------------------------------------------------------------------------ default --- */

static int default_threads(int unused)
{
    (void)unused;
    unsetenv("OMP_NUM_THREADS");
    int usual = skl_max_threads();
    setenv("OMP_NUM_THREADS", "1", 1);
    int bad = skl_max_threads() != 1;
    setenv("OMP_NUM_THREADS", "1,4", 1);
    bad |= (skl_max_threads() != 1) << 1;
    setenv("OMP_NUM_THREADS", "100000", 1);
    bad |= (skl_max_threads() != usual) << 2;
    setenv("OMP_NUM_THREADS", "many", 1);
    bad |= (skl_max_threads() != usual) << 3;
    unsetenv("OMP_NUM_THREADS");
#ifdef __linux__
    cpu_set_t set;
    if (!sched_getaffinity(0, sizeof set, &set)) {
        bad |= (usual != CPU_COUNT(&set)) << 4;
        int first = 0;
        while (!CPU_ISSET(first, &set)) first++;
        CPU_ZERO(&set);
        CPU_SET(first, &set);
        bad |= (sched_setaffinity(0, sizeof set, &set) || skl_max_threads() != 1) << 5;
    }
#endif
    return bad;
}

int main(void)
{
    test_begin("test_team");
    fill(a_s, ROWS * DIM), fill(a_t, ROWS * DIM), fill(b_s, COLUMNS * DIM), fill(b_t, COLUMNS * DIM);
    CHECK_STATUS(call(&expected, 1, NULL, NULL), SKL_OK); /* one thread: the children's parent has no others */
    in_child("seconds late", threads_come_late, 4);
    for (skl_team_waits = 0; skl_team_waits < 2; skl_team_waits++) {
        for (int possible = 0; possible < THREADS; possible++)
            in_child("threads that can be had", creation_fails, possible);
        in_child("default", default_threads, 0);
        in_child("signals", signals_are_the_callers, 4);
        in_child("callers", callers_at_once, test_quick() ? 4 : 8);
        in_child("cancelled caller", cancelled_caller, 10);
        if (!SANITIZED) {
            in_child("forks during calls", fork_in_the_middle, test_quick() ? 10 : 60);
            in_child("fork in a callback", fork_in_a_callback, 3);
            for (int more = 0; more < 2; more++) in_child("processes", processes_are_short, more);
            for (int megabytes = 0; megabytes <= 6; megabytes += 2) in_child("megabytes", memory_is_short, megabytes);
        }
    }
    return test_end();
}
