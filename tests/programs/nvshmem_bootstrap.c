/* Loads one of NVSHMEM's bootstrap plug-ins, as its library does, and checks what the plug-in's collectives bring. Needs no GPU.
   The structure is bootstrap_handle_v1 of NVSHMEM's nvshmemi_bootstrap_defines.h. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VERSION = 30000, LENGTH = 3000, ROUNDS = 3, MOST_RANKS = 16 };

struct handle {
    int version, rank, size, rank_on_node, ranks_of_node;
    int (*allgather)(const void *ours, void *all, int length, struct handle *handle);
    int (*alltoall)(const void *ours, void *all, int length, struct handle *handle);
    int (*barrier)(struct handle *handle);
    void (*global_exit)(int status);
    int (*finalize)(struct handle *handle);
    int (*show_info)(struct handle *handle, int style);
    void *operations_before, *state;
};

/* The plug-in for PMIx calls libpmix 3's name of a function; later ones have it under the standard's name alone. */
void pmix_value_load(void *value, const void *data, unsigned short type) {
    void (*load)(void *, const void *, unsigned short) = NULL;
    void *libpmix = dlopen("libpmix.so.2", RTLD_NOW);
    if (libpmix)
        *(void **)&load = dlsym(libpmix, "PMIx_Value_load");
    if (!load)
        exit(4);
    load(value, data, type);
}

static char ours[MOST_RANKS * LENGTH], all[MOST_RANKS * LENGTH];

static char letter(int from, int to, int round) { return (char)(1 + from + 16 * to + 5 * round); }

static int differ(int rank, int size, int round, int to_each) {
    int wrong = 0;
    for (int from = 0; from < size; from++)
        for (int at = 0; at < LENGTH; at++)
            wrong += all[from * LENGTH + at] != letter(from, to_each ? rank : 0, round);
    return wrong;
}

int main(int count, char **arguments) {
    void *plugin = count > 1 ? dlopen(arguments[1], RTLD_NOW) : NULL;
    int (*init)(void *, struct handle *, int) = NULL;
    if (plugin)
        *(void **)&init = dlsym(plugin, "nvshmemi_bootstrap_plugin_init");
    if (!init) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    struct handle handle = {.version = VERSION};
    if (init(NULL, &handle, VERSION) != 0 || handle.size > MOST_RANKS)
        return 3;
    int wrong = 0;
    for (int round = 0; round < ROUNDS; round++) {
        memset(ours, letter(handle.rank, 0, round), LENGTH);
        wrong += handle.allgather(ours, all, LENGTH, &handle) != 0 || differ(handle.rank, handle.size, round, 0);
        for (int to = 0; to < handle.size; to++)
            memset(ours + to * LENGTH, letter(handle.rank, to, round), LENGTH);
        wrong += handle.alltoall(ours, all, LENGTH, &handle) != 0 || differ(handle.rank, handle.size, round, 1);
        wrong += handle.barrier(&handle) != 0;
    }
    printf("rank %d of %d: %d wrong\n", handle.rank, handle.size, wrong);
    return handle.finalize(&handle) != 0;
}
