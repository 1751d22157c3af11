/* Ranks get each other's values without a fence: those that are there, those that come later, and those that never come. */
#include <pmix.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

static pmix_proc_t me;

static void tell(pmix_scope_t scope, const char *key, uint32_t number) {
    pmix_value_t value;
    PMIX_VALUE_LOAD(&value, &number, PMIX_UINT32);
    PMIx_Put(scope, key, &value);
    PMIx_Commit();
}

/* What is known of a rank, or a negative status. */
static long get(pmix_rank_t rank, const char *key, int seconds) {
    pmix_proc_t proc;
    pmix_info_t info;
    pmix_value_t *value = NULL;
    PMIX_LOAD_PROCID(&proc, me.nspace, rank);
    PMIX_INFO_LOAD(&info, PMIX_TIMEOUT, &seconds, PMIX_INT);
    pmix_status_t status = PMIx_Get(&proc, key, &info, 1, &value);
    if (status != PMIX_SUCCESS)
        return status;
    long number = value->data.uint32;
    PMIX_VALUE_RELEASE(value);
    return number;
}

int main(void) {
    pmix_proc_t all;
    pmix_value_t *value;
    int wrong = 0;
    if (PMIx_Init(&me, NULL, 0) != PMIX_SUCCESS)
        return 2;
    PMIX_LOAD_PROCID(&all, me.nspace, PMIX_RANK_WILDCARD);
    PMIx_Get(&all, PMIX_JOB_SIZE, NULL, 0, &value);
    pmix_rank_t size = value->data.uint32;
    usleep(100000 * me.rank);
    tell(PMIX_GLOBAL, "early", 100 + me.rank);
    for (pmix_rank_t rank = 0; rank < size; rank++)
        wrong += get(rank, "early", 30) != 100 + rank;
    usleep(100000 * me.rank);
    tell(PMIX_GLOBAL, "late", 200 + me.rank);
    for (pmix_rank_t rank = 0; rank < size; rank++)
        wrong += get(rank, "late", 30) != 200 + rank;
    wrong += get((me.rank + 1) % size, "never", 1) >= 0;
    printf("rank %u of %u: %d wrong\n", me.rank, size, wrong);
    PMIx_Fence(NULL, 0, NULL, 0);
    PMIx_Finalize(NULL, 0);
    return 0;
}
