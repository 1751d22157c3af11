/* A process that uses both libraries: what is put by one is got by the other, and each barrier of one meets a fence of the other. */
#include <slurm/pmi.h>
#include <slurm/pmi2.h>
#include <stdio.h>
#include <string.h>

int main(void) {
    int spawned, size, rank, appnum, length, wrong = 0;
    char name[256], job[256], key[64], value[1024], expected[64];
    if (PMI_Init(&spawned) != PMI_SUCCESS || PMI2_Init(&spawned, &size, &rank, &appnum) != PMI2_SUCCESS)
        return 2;
    wrong += PMI_KVS_Get_my_name(name, sizeof name) || PMI2_Job_GetId(job, sizeof job) || strcmp(name, job) != 0;
    for (int round = 0; round < 10; round++) {
        int by_first = (rank + round) % 2 == 0;
        snprintf(key, sizeof key, "both-%d-%d", round, rank);
        snprintf(value, sizeof value, "%d.%d", round, rank);
        wrong += by_first ? PMI_KVS_Put(name, key, value) : PMI2_KVS_Put(key, value);
        wrong += by_first ? PMI_Barrier() : PMI2_KVS_Fence();
        for (int other = 0; other < size; other++) {
            snprintf(key, sizeof key, "both-%d-%d", round, other);
            snprintf(expected, sizeof expected, "%d.%d", round, other);
            wrong += by_first ? PMI2_KVS_Get(NULL, PMI2_ID_NULL, key, value, sizeof value, &length)
                              : PMI_KVS_Get(name, key, value, sizeof value);
            wrong += strcmp(value, expected) != 0;
        }
    }
    printf("rank %d of %d: %d wrong\n", rank, size, wrong);
    wrong += PMI2_Finalize();
    return wrong + PMI_Finalize();
}
