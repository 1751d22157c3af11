/* All ranks fence, the last one late. Then the first and the last rank fence, the last one late again, while the rank between has left. */
#include <pmix.h>
#include <stdio.h>
#include <unistd.h>

int main(void) {
    pmix_proc_t me, ends[2];
    if (PMIx_Init(&me, NULL, 0) != PMIX_SUCCESS)
        return 2;
    PMIX_LOAD_PROCID(&ends[0], me.nspace, 0);
    PMIX_LOAD_PROCID(&ends[1], me.nspace, 2);
    if (me.rank == 2)
        sleep(2);
    int wrong = PMIx_Fence(NULL, 0, NULL, 0) != PMIX_SUCCESS;
    if (me.rank == 2)
        sleep(3);
    if (me.rank != 1)
        wrong += PMIx_Fence(ends, 2, NULL, 0) != PMIX_SUCCESS;
    printf("rank %u: %d wrong\n", me.rank, wrong);
    PMIx_Finalize(NULL, 0);
    return 0;
}
