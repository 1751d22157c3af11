/* Rank 0 tells the others of an event of its own; each waits until it has heard of it. */
#include <pmix.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>

static const pmix_status_t TIDE = -2077;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool registered, heard;
static pmix_rank_t teller;
static char tide[16];

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

static void on_event(size_t id, pmix_status_t status, const pmix_proc_t *source, pmix_info_t info[], size_t ninfo,
                     pmix_info_t results[], size_t nresults, pmix_event_notification_cbfunc_fn_t done, void *context) {
    teller = source->rank;
    for (size_t i = 0; i < ninfo; i++)
        if (PMIX_CHECK_KEY(&info[i], "tide"))
            snprintf(tide, sizeof tide, "%s", info[i].value.data.string);
    done(PMIX_EVENT_ACTION_COMPLETE, NULL, 0, NULL, NULL, context);
    set(&heard);
}

static void on_registered(pmix_status_t status, size_t id, void *context) { set(&registered); }

int main(void) {
    pmix_proc_t me;
    pmix_info_t info;
    pmix_status_t code = TIDE;
    if (PMIx_Init(&me, NULL, 0) != PMIX_SUCCESS)
        return 2;
    PMIx_Register_event_handler(&code, 1, NULL, 0, on_event, on_registered, NULL);
    wait_for(&registered);
    PMIx_Fence(NULL, 0, NULL, 0);
    if (me.rank == 0) {
        PMIX_INFO_LOAD(&info, "tide", "high", PMIX_STRING);
        PMIx_Notify_event(TIDE, &me, PMIX_RANGE_NAMESPACE, &info, 1, NULL, NULL);
    } else {
        wait_for(&heard);
        printf("rank %u: rank %u says that the tide is %s\n", me.rank, teller, tide);
    }
    PMIx_Fence(NULL, 0, NULL, 0);
    PMIx_Finalize(NULL, 0);
    return 0;
}
