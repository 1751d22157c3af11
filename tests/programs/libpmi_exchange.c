/* What an MPI library does with libpmi: facts about the job, then every rank puts a value of the greatest length, and gets everybody's. */
#include <slurm/pmi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int number(int (*get)(int *)) {
    int value = -77;
    int code = get(&value);
    if (code != PMI_SUCCESS) {
        printf("code %d\n", code);
        exit(3);
    }
    return value;
}

static void write_value(char *value, int length, int rank, int round) {
    memset(value, 'a' + (rank + round) % 26, length - 1);
    value[length - 1] = '\0';
    int head = snprintf(value, length, "%d.%d=;", rank, round);
    value[head] = '_';
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 3, spawned, wrong = 0;
    char line[512];
    if (PMI_Init(&spawned) != PMI_SUCCESS)
        return 2;
    int rank = number(PMI_Get_rank), size = number(PMI_Get_size), local = number(PMI_Get_clique_size);
    int names = number(PMI_KVS_Get_name_length_max), values = number(PMI_KVS_Get_value_length_max);
    char *name = malloc(names), *value = malloc(values), *expected = malloc(values), key[64];
    int *ranks = malloc(local * sizeof *ranks);
    if (PMI_KVS_Get_my_name(name, names) != PMI_SUCCESS || PMI_Get_clique_ranks(ranks, local) != PMI_SUCCESS)
        return 4;
    for (int round = 0; round < rounds; round++) {
        snprintf(key, sizeof key, "card-%d-%d", round, rank);
        write_value(value, values, rank, round);
        wrong += PMI_KVS_Put(name, key, value) != PMI_SUCCESS || PMI_KVS_Commit(name) != PMI_SUCCESS;
        wrong += PMI_Barrier() != PMI_SUCCESS;
        for (int other = 0; other < size; other++) {
            snprintf(key, sizeof key, "card-%d-%d", round, other);
            write_value(expected, values, other, round);
            wrong += PMI_KVS_Get(name, key, value, values) != PMI_SUCCESS || strcmp(value, expected) != 0;
        }
    }
    int length = snprintf(line, sizeof line, "rank %d of %d: program %d, spawned %d, %d wrong, local", rank, size,
                          number(PMI_Get_appnum), spawned, wrong);
    for (int i = 0; i < local && i < 16; i++)
        length += snprintf(line + length, sizeof line - length, " %d", ranks[i]);
    puts(line);
    return PMI_Finalize() == PMI_SUCCESS ? 0 : 5;
}
