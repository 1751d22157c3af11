/* pmi2_abort [TEXT] RANK: that rank aborts the job; the others wait for it in a fence. */
#include <slurm/pmi2.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int spawned, size, rank, appnum;
    if (PMI2_Init(&spawned, &size, &rank, &appnum) != PMI2_SUCCESS)
        return 2;
    if (rank == atoi(argv[argc - 1])) {
        puts("aborting");
        fflush(stdout);
        PMI2_Abort(1, argc > 2 ? argv[1] : "the sea is dry; all of it");
    }
    PMI2_KVS_Fence();
    PMI2_Finalize();
    return 0;
}
