/*
 * What a PMI-1 client library costs: to load, to start, and for each get.
 *
 *     cc -O2 -o client_library benches/client_library.c
 *     lattice launch -n 4 ./client_library PREFIX/lib/lattice/libpmi.so.0 [keys of each rank]
 *
 * The same line under `mpiexec` shows another launcher. Rank 0 prints; times are in microseconds.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static int by_size(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return a < b ? -1 : a > b;
}

static void *library;

static void *function(const char *name) {
    void *found = dlsym(library, name);
    if (!found) {
        puts(dlerror());
        exit(3);
    }
    return found;
}

int main(int argc, char **argv) {
    int keys = argc > 2 ? atoi(argv[2]) : 64, spawned, rank, size, failed = 0;
    char name[256], key[64], value[1024];
    double loading = now();
    library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
    double loaded = now();
    if (!library)
        return 2;
    int (*init)(int *) = function("PMI_Init"), (*get_rank)(int *) = function("PMI_Get_rank");
    int (*get_size)(int *) = function("PMI_Get_size"), (*my_name)(char *, int) = function("PMI_KVS_Get_my_name");
    int (*put)(const char *, const char *, const char *) = function("PMI_KVS_Put");
    int (*get)(const char *, const char *, char *, int) = function("PMI_KVS_Get");
    int (*commit)(const char *) = function("PMI_KVS_Commit"), (*barrier)(void) = function("PMI_Barrier");
    int (*finalize)(void) = function("PMI_Finalize");

    double starting = now();
    failed += init(&spawned) != 0;
    double started = now();
    get_rank(&rank);
    get_size(&size);
    my_name(name, sizeof name);
    memset(value, 'v', 128);
    value[128] = '\0';
    for (int i = 0; i < keys; i++) {
        snprintf(key, sizeof key, "card-%d-%d", rank, i);
        failed += put(name, key, value) != 0;
    }
    commit(name);
    barrier();

    int gets = size * keys;
    double *times = malloc(gets * sizeof *times), begun = now();
    unsigned random = rank + 1;
    for (int i = 0; i < gets; i++) {
        random = random * 1103515245 + 12345;
        snprintf(key, sizeof key, "card-%d-%d", (random >> 8) % size, (random >> 16) % keys);
        double asked = now();
        failed += get(name, key, value, sizeof value) != 0;
        times[i] = now() - asked;
    }
    double all = now() - begun;
    barrier();
    qsort(times, gets, sizeof *times, by_size);
    if (rank == 0)
        printf("load %.0f, start %.0f, get %.2f at least, %.2f median, %.2f at the 99th percentile, %d gets %.0f, %d failed\n",
               loaded - loading, started - starting, times[0], times[gets / 2], times[gets * 99 / 100], gets, all, failed);
    return finalize();
}
