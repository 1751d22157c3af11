/* Ranks connect and part, in all and by their parity, and fence in these groups. */
#include <pmix.h>
#include <stdio.h>

int main(void) {
    pmix_proc_t me, all, half[64];
    pmix_value_t *size;
    int wrong = 0, members = 0;
    if (PMIx_Init(&me, NULL, 0) != PMIX_SUCCESS)
        return 2;
    PMIX_LOAD_PROCID(&all, me.nspace, PMIX_RANK_WILDCARD);
    if (PMIx_Get(&all, PMIX_JOB_SIZE, NULL, 0, &size) != PMIX_SUCCESS)
        return 3;
    for (pmix_rank_t rank = me.rank % 2; rank < size->data.uint32; rank += 2) {
        PMIX_LOAD_PROCID(&half[members], me.nspace, rank);
        members++;
    }
    wrong += PMIx_Connect(&all, 1, NULL, 0) != PMIX_SUCCESS;
    wrong += PMIx_Disconnect(&all, 1, NULL, 0) != PMIX_SUCCESS;
    for (int round = 0; round < 3; round++) {
        wrong += PMIx_Connect(half, members, NULL, 0) != PMIX_SUCCESS;
        wrong += PMIx_Fence(half, members, NULL, 0) != PMIX_SUCCESS;
        wrong += PMIx_Disconnect(half, members, NULL, 0) != PMIX_SUCCESS;
    }
    printf("rank %u of %u: %d wrong\n", me.rank, size->data.uint32, wrong);
    PMIX_VALUE_RELEASE(size);
    PMIx_Finalize(NULL, 0);
    return 0;
}
