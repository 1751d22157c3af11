/* Ranks tell each other a value of every scope, and the last one tells one more that the others already wait for. Ranks fill
 * one node after the other. */
#include <pmix.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static pmix_proc_t me;

static void put(pmix_scope_t scope, const char *key, uint32_t number) {
    pmix_value_t value;
    PMIX_VALUE_LOAD(&value, &number, PMIX_UINT32);
    PMIx_Put(scope, key, &value);
}

/* What is known of a rank, or a negative status. */
static long get(pmix_rank_t rank, const char *key, const char *how, int seconds) {
    pmix_proc_t proc;
    pmix_info_t info;
    pmix_value_t *value = NULL;
    bool yes = true;
    PMIX_LOAD_PROCID(&proc, me.nspace, rank);
    if (seconds > 0)
        PMIX_INFO_LOAD(&info, how, &seconds, PMIX_INT);
    else
        PMIX_INFO_LOAD(&info, how, &yes, PMIX_BOOL);
    pmix_status_t status = PMIx_Get(&proc, key, &info, 1, &value);
    if (status != PMIX_SUCCESS)
        return status;
    long number = value->data.uint32;
    PMIX_VALUE_RELEASE(value);
    return number;
}

int main(void) {
    pmix_info_t collect;
    bool yes = true;
    int wrong = 0, per_node = atoi(getenv("MPI_LOCALNRANKS"));
    if (PMIx_Init(&me, NULL, 0) != PMIX_SUCCESS)
        return 2;
    pmix_rank_t size = get(PMIX_RANK_WILDCARD, PMIX_JOB_SIZE, PMIX_IMMEDIATE, 0);
    put(PMIX_GLOBAL, "everywhere", 100 + me.rank);
    put(PMIX_LOCAL, "here", 200 + me.rank);
    put(PMIX_REMOTE, "elsewhere", 300 + me.rank);
    PMIx_Commit();
    PMIX_INFO_LOAD(&collect, PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
    PMIx_Fence(NULL, 0, &collect, 1);
    for (pmix_rank_t rank = 0; rank < size; rank++) {
        wrong += get(rank, "everywhere", PMIX_IMMEDIATE, 0) != 100 + rank;
        if (rank / per_node == me.rank / per_node) {
            wrong += get(rank, "here", PMIX_TIMEOUT, 30) != 200 + rank;
            if (rank != me.rank)
                wrong += get(rank, "elsewhere", PMIX_IMMEDIATE, 0) >= 0;
        } else {
            wrong += get(rank, "here", PMIX_TIMEOUT, 1) >= 0;
            wrong += get(rank, "elsewhere", PMIX_TIMEOUT, 30) != 300 + rank;
        }
    }
    wrong += get(size - 1, "late", PMIX_IMMEDIATE, 0) >= 0;
    wrong += get(0, "never", PMIX_TIMEOUT, 1) >= 0;
    PMIx_Fence(NULL, 0, NULL, 0);
    if (me.rank == size - 1) {
        usleep(200000);
        put(PMIX_GLOBAL, "late", 400);
        PMIx_Commit();
    }
    long late = get(size - 1, "late", PMIX_TIMEOUT, 60);
    printf("rank %u of %u: %d wrong, late %ld\n", me.rank, size, wrong, late);
    PMIx_Finalize(NULL, 0);
    return 0;
}
