/* pmix_abort RANK CODE: that rank aborts the job with a text; the others wait for it in a fence. */
#include <pmix.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    pmix_proc_t me;
    if (PMIx_Init(&me, NULL, 0) != PMIX_SUCCESS)
        return 2;
    if (me.rank == (pmix_rank_t)atoi(argv[1])) {
        puts("aborting");
        fflush(stdout);
        PMIx_Abort(atoi(argv[2]), "the sea is dry; all of it", NULL, 0);
    }
    PMIx_Fence(NULL, 0, NULL, 0);
    PMIx_Finalize(NULL, 0);
    return 0;
}
