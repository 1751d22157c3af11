/* The ring of Slurm's library: every rank learns its neighbours' values, and its place. */
#include <slurm/pmi2.h>
#include <stdio.h>

int main(void) {
    int spawned, size, rank, appnum, place, places;
    char value[64], left[1024], right[1024];
    if (PMI2_Init(&spawned, &size, &rank, &appnum) != PMI2_SUCCESS)
        return 2;
    snprintf(value, sizeof value, "from %d", rank);
    int code = PMIX_Ring(value, &place, &places, left, right, sizeof left);
    printf("rank %d: code %d, place %d of %d, left %s, right %s\n", rank, code, place, places, left, right);
    PMI2_Finalize();
    return 0;
}
