/* Ranks tell each other a value of every scope, and the last one tells one more that the others already wait for. Ranks fill
 * one node after the other. */
#include "pmix_numbers.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(void) {
    pmix_info_t collect;
    bool yes = true;
    int wrong = 0, per_node = atoi(getenv("MPI_LOCALNRANKS"));
    if (PMIx_Init(&me, NULL, 0) != PMIX_SUCCESS)
        return 2;
    pmix_rank_t size = get_known(PMIX_RANK_WILDCARD, PMIX_JOB_SIZE);
    put(PMIX_GLOBAL, "everywhere", 100 + me.rank);
    put(PMIX_LOCAL, "here", 200 + me.rank);
    put(PMIX_REMOTE, "elsewhere", 300 + me.rank);
    PMIx_Commit();
    PMIX_INFO_LOAD(&collect, PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
    PMIx_Fence(NULL, 0, &collect, 1);
    for (pmix_rank_t rank = 0; rank < size; rank++) {
        wrong += get_known(rank, "everywhere") != 100 + rank;
        if (rank / per_node == me.rank / per_node) {
            wrong += get_within(rank, "here", 30) != 200 + rank;
            if (rank != me.rank)
                wrong += get_known(rank, "elsewhere") >= 0;
        } else {
            wrong += get_within(rank, "here", 1) >= 0;
            wrong += get_within(rank, "elsewhere", 30) != 300 + rank;
        }
    }
    wrong += get_known(size - 1, "late") >= 0;
    wrong += get_within(0, "never", 1) >= 0;
    PMIx_Fence(NULL, 0, NULL, 0);
    if (me.rank == size - 1) {
        usleep(200000);
        put(PMIX_GLOBAL, "late", 400);
        PMIx_Commit();
    }
    /* By then, the last one has ended, and its node may have no ranks left: the value is still to be had. */
    if (me.rank < size - 1)
        usleep(700000);
    long late = get_within(size - 1, "late", 60);
    printf("rank %u of %u: %d wrong, late %ld\n", me.rank, size, wrong, late);
    PMIx_Finalize(NULL, 0);
    return 0;
}
