/* Every rank puts 20 pairs; then each walks through all of them, and through none before. */
#include <slurm/pmi.h>
#include <stdio.h>
#include <string.h>

static int walk(const char *name) {
    char key[64], value[1024], again[1024];
    int pairs = 0, code = PMI_KVS_Iter_first(name, key, sizeof key, value, sizeof value);
    for (; code == PMI_SUCCESS && key[0] != '\0'; code = PMI_KVS_Iter_next(name, key, sizeof key, value, sizeof value)) {
        if (PMI_KVS_Get(name, key, again, sizeof again) != PMI_SUCCESS || strcmp(value, again) != 0)
            return -1;
        pairs++;
    }
    return code == PMI_SUCCESS ? pairs : code * 1000;
}

int main(void) {
    int spawned, rank, size;
    char name[256], key[64], value[64], small[2];
    if (PMI_Init(&spawned) != PMI_SUCCESS || PMI_KVS_Get_my_name(name, sizeof name) != PMI_SUCCESS)
        return 2;
    PMI_Get_rank(&rank);
    PMI_Get_size(&size);
    int before = walk(name);
    PMI_Barrier();
    for (int i = 0; i < 20; i++) {
        snprintf(key, sizeof key, "key-%d-%d", rank, i);
        snprintf(value, sizeof value, "value=%d;%d", rank, i);
        PMI_KVS_Put(name, key, value);
    }
    PMI_Barrier();
    int after = walk(name), no_room = PMI_KVS_Iter_first(name, small, sizeof small, value, sizeof value);
    printf("rank %d of %d: %d before, %d after, %d without room\n", rank, size, before, after, no_room);
    return PMI_Finalize();
}
