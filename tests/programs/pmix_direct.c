/* Ranks get each other's values without a fence: those that are there, those that come later, and those that never come. */
#include "pmix_numbers.h"
#include <stdio.h>
#include <unistd.h>

static void tell(const char *key, uint32_t number) {
    put(PMIX_GLOBAL, key, number);
    PMIx_Commit();
}

int main(void) {
    int wrong = 0;
    if (PMIx_Init(&me, NULL, 0) != PMIX_SUCCESS)
        return 2;
    pmix_rank_t size = get_known(PMIX_RANK_WILDCARD, PMIX_JOB_SIZE);
    usleep(100000 * me.rank);
    tell("early", 100 + me.rank);
    for (pmix_rank_t rank = 0; rank < size; rank++)
        wrong += get_within(rank, "early", 30) != 100 + rank;
    usleep(100000 * me.rank);
    tell("late", 200 + me.rank);
    for (pmix_rank_t rank = 0; rank < size; rank++)
        wrong += get_within(rank, "late", 30) != 200 + rank;
    wrong += get_within((me.rank + 1) % size, "never", 1) >= 0;
    printf("rank %u of %u: %d wrong\n", me.rank, size, wrong);
    PMIx_Fence(NULL, 0, NULL, 0);
    PMIx_Finalize(NULL, 0);
    return 0;
}
