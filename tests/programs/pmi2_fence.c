/* Every rank puts a value with all characters that the protocol uses itself, fences, and checks everybody's. */
#include <slurm/pmi2.h>
#include <stdio.h>
#include <string.h>

enum { LENGTH = 1024 };

static void write_value(char value[LENGTH], int rank, int round) {
    snprintf(value, LENGTH, "a;b;;c=d;%d;%d = [x] ;", rank, round);
}

int main(void) {
    int spawned, size, rank, appnum, length, wrong = 0;
    char job[256], key[64], value[LENGTH], expected[LENGTH];
    if (PMI2_Init(&spawned, &size, &rank, &appnum) != PMI2_SUCCESS)
        return 2;
    PMI2_Job_GetId(job, sizeof job);
    for (int round = 0; round < 3; round++) {
        snprintf(key, sizeof key, "card;%d", rank);
        write_value(value, rank, round);
        PMI2_KVS_Put(key, value);
        PMI2_KVS_Fence();
        for (int other = 0; other < size; other++) {
            snprintf(key, sizeof key, "card;%d", other);
            write_value(expected, other, round);
            int code = PMI2_KVS_Get(job, PMI2_ID_NULL, key, value, sizeof value, &length);
            wrong += code != PMI2_SUCCESS || strcmp(value, expected) != 0;
        }
        /* Nobody puts again before all have seen this round. */
        PMI2_KVS_Fence();
    }
    printf("rank %d of %d: %d wrong values\n", rank, size, wrong);
    PMI2_Finalize();
    return 0;
}
