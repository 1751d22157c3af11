/* pmix_death RANK [wait]: that rank is killed after a first fence, by itself or by others. Each other one waits until it has heard of it, meets the others in a fence
   of all, and in one of those that are left. */
#include <pmix.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool registered, heard;
static pmix_status_t code;
static pmix_rank_t dead;

static void set(bool *what) {
    pthread_mutex_lock(&mutex);
    *what = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

static void wait_for(bool *what) {
    pthread_mutex_lock(&mutex);
    while (!*what)
        pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
}

static void on_death(size_t id, pmix_status_t status, const pmix_proc_t *source, pmix_info_t info[], size_t ninfo,
                     pmix_info_t results[], size_t nresults, pmix_event_notification_cbfunc_fn_t done, void *context) {
    code = status;
    for (size_t i = 0; i < ninfo; i++)
        if (PMIX_CHECK_KEY(&info[i], PMIX_EVENT_AFFECTED_PROC))
            dead = info[i].value.data.proc->rank;
    done(PMIX_EVENT_ACTION_COMPLETE, NULL, 0, NULL, NULL, context);
    set(&heard);
}

static void on_registered(pmix_status_t status, size_t id, void *context) { set(&registered); }

int main(int argc, char **argv) {
    pmix_proc_t me, job, *left;
    pmix_value_t *size;
    pmix_status_t codes[] = {PMIX_ERR_PROC_TERM_WO_SYNC, PMIX_ERR_PROC_ABORTED_BY_SIG};
    pmix_rank_t victim = atoi(argv[1]);
    if (PMIx_Init(&me, NULL, 0) != PMIX_SUCCESS)
        return 2;
    PMIX_PROC_LOAD(&job, me.nspace, PMIX_RANK_WILDCARD);
    if (PMIx_Get(&job, PMIX_JOB_SIZE, NULL, 0, &size) != PMIX_SUCCESS)
        return 3;
    PMIx_Register_event_handler(codes, 2, NULL, 0, on_death, on_registered, NULL);
    wait_for(&registered);
    PMIx_Fence(NULL, 0, NULL, 0);
    if (me.rank == victim) {
        puts("dying");
        fflush(stdout);
        if (argc > 2)
            pause();
        raise(SIGKILL);
    }
    wait_for(&heard);
    pmix_status_t all = PMIx_Fence(NULL, 0, NULL, 0);
    PMIX_PROC_CREATE(left, size->data.uint32 - 1);
    for (pmix_rank_t place = 0; place < size->data.uint32 - 1; place++)
        PMIX_PROC_LOAD(&left[place], me.nspace, place < victim ? place : place + 1);
    pmix_status_t among = PMIx_Fence(left, size->data.uint32 - 1, NULL, 0);
    printf("rank %u: %d of rank %u, all %d, left %d\n", me.rank, code, dead, all, among);
    PMIx_Finalize(NULL, 0);
    return 0;
}
