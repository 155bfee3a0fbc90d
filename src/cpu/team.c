/* SPDX-License-Identifier: Apache-2.0
 *
 * A pool of threads that wait for work. A caller takes those that nobody uses and starts the missing ones. It does
 * without those that cannot be started (there are limits on processes and on memory). No caller waits for the threads
 * of another one: with n calls at the same time there are n times as many threads.
 *
 * A worker is a place in a static table, so that nothing is allocated and no worker ever goes away while somebody looks
 * at it. Whoever waits for a change of its state looks for a while, then sleeps.
 */
#define _DEFAULT_SOURCE /* sigset_t */
#include "team.h"

#include "../float_mode.h"

#ifdef SKL_THREADS
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <time.h>

enum state {
    IDLE,
    CALLED, /* by a caller, who may still change his mind and do without it */
    HERE,   /* it has come, and waits for the others */
    BUSY,
    ENDING
};

struct worker {
    _Alignas(128) atomic_int state; /* no line shared with a neighbour, nor the line that is fetched with it */
    atomic_int sleepers;            /* at 'changed': the worker itself, or its caller */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    int running;         /* has a thread */
    int awake;           /* was so when it was called */
    struct worker *next; /* in the pool's list, or in its caller's */
    void (*work)(void *data, int rank);
    void *data;
    int rank;
};

static struct worker table[SKL_THREADS_MAX - 1];

static struct {
    pthread_mutex_t lock;
    struct worker *idle, *empty; /* that nobody uses: with a thread, and without since it could not be started */
    int used;                    /* places of the table that have been in use */
    int survives_fork;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ----------------------------------------------------------------------------------------------- waiting --- */

/* A thread that sleeps takes some 10 to 50 us to wake, so a call that comes soon after another finds its threads awake.
 * To go on looking would not help where another thread keeps the core without need, as OpenMP's idle ones do for
 * milliseconds: one that wakes gets its turn before it, one that yields does not. */
enum { LOOK_NS = 200 * 1000, LOOKS_A_CLOCK = 16 };

static long long now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1000000000ll * t.tv_sec + t.tv_nsec;
}

static int looked_in_vain(struct worker *w, enum state old)
{
    int looks = 0;
    for (long long end = now_ns() + LOOK_NS; looks % LOOKS_A_CLOCK || now_ns() < end; skl_look_again(&looks))
        if (atomic_load_explicit(&w->state, memory_order_acquire) != (int)old)
            return 0;
    return 1;
}

/* Sleeps until the state may have changed. It also wakes when the state was changed and at once changed back: a caller
 * who cannot wait for this thread may still want it to be awake for his next call. */
static void sleep_once(struct worker *w, enum state old)
{
    pthread_mutex_lock(&w->lock);
    atomic_fetch_add(&w->sleepers, 1);
    if (atomic_load(&w->state) == (int)old)
        pthread_cond_wait(&w->changed, &w->lock);
    atomic_fetch_sub(&w->sleepers, 1);
    pthread_mutex_unlock(&w->lock);
}

static void wait_while(struct worker *w, enum state old)
{
    while (looked_in_vain(w, old)) sleep_once(w, old);
}

/* Returns whether somebody was asleep waiting for it. A sleeper either sees the new state or has been counted in
 * 'sleepers' before: these accesses have one order for all threads. */
static int set_state(struct worker *w, enum state state)
{
    atomic_store(&w->state, state);
    if (!atomic_load(&w->sleepers))
        return 0;
    pthread_mutex_lock(&w->lock);
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    return 1;
}

/* ---------------------------------------------------------------------------------------------- starting --- */

static void *serve(void *data)
{
    struct worker *me = data;
    skl_enter_float_mode();
    for (;;) {
        int called = CALLED;
        wait_while(me, IDLE);
        if (atomic_compare_exchange_strong(&me->state, &called, HERE)) {
            wait_while(me, HERE);
            me->work(me->data, me->rank);
            set_state(me, IDLE);
        } else if (called == ENDING) {
            return NULL;
        }
    }
}

/* The program's signal handlers run on its own threads. A fault is always delivered to the thread that caused it. */
static void block_signals(sigset_t *before)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t most;
    sigfillset(&most);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(&most, faults[i]);
    pthread_sigmask(SIG_BLOCK, &most, before);
}

/* The kernels need less than 64 KiB. The usual stack follows `ulimit -s`, and can be more than memory limits allow for
 * many threads; but the program's thread-local variables come out of it, too, and where those are large EINVAL says so.
 * */
static int create_thread(struct worker *w)
{
    enum { STACK = 1 << 20 };
    pthread_attr_t small;
    int failed = pthread_attr_init(&small);
    if (!failed) {
        failed = pthread_attr_setstacksize(&small, STACK);
        failed = failed ? failed : pthread_create(&w->thread, &small, serve, w);
        pthread_attr_destroy(&small);
    }
    return failed == EINVAL ? pthread_create(&w->thread, NULL, serve, w) : failed;
}

static void start(struct worker *w)
{
    sigset_t before;
    atomic_store(&w->state, IDLE);
    atomic_store(&w->sleepers, 0);
    if (pthread_mutex_init(&w->lock, NULL))
        return;
    if (!pthread_cond_init(&w->changed, NULL)) {
        block_signals(&before);
        w->running = !create_thread(w);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (w->running)
            return;
        pthread_cond_destroy(&w->changed);
    }
    pthread_mutex_destroy(&w->lock);
}

/* -------------------------------------------------------------------------------------------------- pool --- */

/* The child of a fork has none of its parent's threads, and whoever held the lock is not there to give it back. */
static void begin_anew(void)
{
    pthread_mutex_init(&pool.lock, NULL);
    pool.idle = pool.empty = NULL;
    pool.used = 0;
}

/* Up to n workers that nobody uses, in a list. */
static struct worker *take_workers(int n)
{
    struct worker *list = NULL, **end = &list;
    pthread_mutex_lock(&pool.lock);
    if (!pool.survives_fork)
        pool.survives_fork = !pthread_atfork(NULL, NULL, begin_anew);
    for (; n > 0 && pool.survives_fork; n--, end = &(*end)->next) {
        struct worker **from = pool.idle ? &pool.idle : &pool.empty;
        if (*from) {
            *end = *from;
            *from = (*from)->next;
        } else if (pool.used < (int)(sizeof table / sizeof *table)) {
            *end = &table[pool.used++];
            (*end)->running = 0;
        } else {
            break;
        }
        (*end)->next = NULL;
    }
    pthread_mutex_unlock(&pool.lock);
    return list;
}

/* In the order in which they were taken, so that the next call finds each thread at the rank whose memory it has
 * touched. */
static void give_back(struct worker *list)
{
    struct worker *idle = NULL, **end = &idle;
    pthread_mutex_lock(&pool.lock);
    while (list) {
        struct worker *w = list;
        list = w->next;
        if (w->running) {
            *end = w;
            end = &w->next;
        } else {
            w->next = pool.empty;
            pool.empty = w;
        }
    }
    *end = pool.idle;
    pool.idle = idle;
    pthread_mutex_unlock(&pool.lock);
}

/* When the library is unloaded, or the process ends: then perhaps in the middle of other calls, which keep their
 * threads, or in a signal handler, which must not wait for what it has interrupted. */
__attribute__((destructor)) static void end_workers(void)
{
    if (pthread_mutex_trylock(&pool.lock))
        return;
    struct worker *list = pool.idle;
    pool.idle = NULL;
    pthread_mutex_unlock(&pool.lock);
    for (struct worker *w = list; w; w = w->next) set_state(w, ENDING);
    for (struct worker *w = list; w; w = w->next) pthread_join(w->thread, NULL);
}

/* -------------------------------------------------------------------------------------------------- team --- */

int skl_team_waits;

/* Calls all, starting those that have no thread until that fails once. */
static void call_workers(struct worker *list)
{
    int refused = 0;
    for (struct worker *w = list; w; w = w->next) {
        int fresh = !w->running;
        if (fresh && !refused)
            start(w);
        refused = !w->running;
        w->awake = w->running && !set_state(w, CALLED) && !fresh;
    }
}

/* Gives a rank to each that comes in time, 0 to the others, and returns how many are in the team then. */
static int gather(struct worker *list, double patience)
{
    const double waking = 50e-6; /* what a thread that sleeps needs, at best some 10 us */
    int size = 1, looks = 0;
    long long begin = now_ns(), patient = (long long)(1e9 * patience);
    for (struct worker *w = list; w; w = w->next) {
        int called = CALLED, waits = w->running && (w->awake || patience >= waking);
        while (atomic_load_explicit(&w->state, memory_order_acquire) == CALLED &&
               (skl_team_waits || (waits && now_ns() - begin < patient)))
            skl_look_again(&looks);
        w->rank = w->running && !atomic_compare_exchange_strong(&w->state, &called, IDLE) ? size++ : 0;
    }
    return size;
}

static void run_together(struct skl_team *team, int threads, double patience, void (*work)(void *data, int rank),
                         void *data)
{
    struct worker *list = take_workers(threads - 1);
    call_workers(list);
    team->size = gather(list, patience);
    for (struct worker *w = list; w; w = w->next)
        if (w->rank) {
            w->work = work, w->data = data;
            set_state(w, BUSY);
        }
    work(data, 0);
    for (struct worker *w = list; w; w = w->next)
        if (w->rank)
            wait_while(w, BUSY);
    give_back(list);
}

void skl_team_run(struct skl_team *team, int threads, double patience, void (*work)(void *data, int rank), void *data)
{
    int cancelling;
    team->size = 1;
    if (threads == 1) {
        work(data, 0);
        return;
    }
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelling); /* sleeping is where a thread could be cancelled */
    run_together(team, threads, patience, work, data);
    pthread_setcancelstate(cancelling, &cancelling);
}

#else

int skl_team_waits;

void skl_team_run(struct skl_team *team, int threads, double patience, void (*work)(void *data, int rank), void *data)
{
    (void)threads, (void)patience;
    team->size = 1;
    work(data, 0);
}

#endif
