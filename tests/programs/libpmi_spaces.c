/* Rank 0 makes two key-value spaces, tells their names, and removes one; all ranks put into both, get from both, and walk through them. */
#include <slurm/pmi.h>
#include <stdio.h>
#include <string.h>

static int rank, size;

static int walk(const char *name) {
    char key[64], value[64];
    int pairs = 0, code = PMI_KVS_Iter_first(name, key, sizeof key, value, sizeof value);
    for (; code == PMI_SUCCESS && key[0] != '\0'; code = PMI_KVS_Iter_next(name, key, sizeof key, value, sizeof value))
        pairs++;
    return code == PMI_SUCCESS ? pairs : -code;
}

/* Number of values of all ranks that are right; all have the same keys in each space. */
static int right(const char *space, const char *word) {
    char key[64], value[64], expected[64];
    int found = 0;
    for (int other = 0; other < size; other++) {
        snprintf(key, sizeof key, "key-%d", other);
        snprintf(expected, sizeof expected, "%s=%d", word, other);
        found += PMI_KVS_Get(space, key, value, sizeof value) == PMI_SUCCESS && !strcmp(value, expected);
    }
    return found;
}

static void put(const char *space, const char *word) {
    char key[64], value[64];
    snprintf(key, sizeof key, "key-%d", rank);
    snprintf(value, sizeof value, "%s=%d", word, rank);
    if (PMI_KVS_Put(space, key, value) != PMI_SUCCESS)
        printf("rank %d cannot put\n", rank);
}

int main(void) {
    int spawned;
    char own[256], spaces[2][256], small[4];
    if (PMI_Init(&spawned) != PMI_SUCCESS || PMI_KVS_Get_my_name(own, sizeof own) != PMI_SUCCESS)
        return 2;
    PMI_Get_rank(&rank);
    PMI_Get_size(&size);
    if (rank == 0) {
        int first = PMI_KVS_Create(spaces[0], sizeof spaces[0]), second = PMI_KVS_Create(spaces[1], sizeof spaces[1]);
        printf("made: %d %d, without room: %d\n", first, second, PMI_KVS_Create(small, sizeof small));
        PMI_KVS_Put(own, "first", spaces[0]);
        PMI_KVS_Put(own, "second", spaces[1]);
        PMI_KVS_Commit(own);
    }
    PMI_Barrier();
    if (PMI_KVS_Get(own, "first", spaces[0], sizeof spaces[0]) != PMI_SUCCESS
        || PMI_KVS_Get(own, "second", spaces[1], sizeof spaces[1]) != PMI_SUCCESS)
        return PMI_Finalize();
    put(own, "own");
    put(spaces[0], "first");
    put(spaces[1], "second");
    PMI_Barrier();
    int all = right(own, "own") + right(spaces[0], "first") + right(spaces[1], "second");
    int walked = walk(own) * 100 + walk(spaces[0]) * 10 + walk(spaces[1]);
    PMI_Barrier();
    if (rank == 0)
        printf("removed: %d, own: %d\n", PMI_KVS_Destroy(spaces[0]), PMI_KVS_Destroy(own));
    PMI_Barrier();
    printf("rank %d of %d: %d right, walked %d, then %d and %d, walked %d\n", rank, size, all, walked,
           right(spaces[0], "first"), right(spaces[1], "second"), walk(spaces[0]));
    return PMI_Finalize();
}
