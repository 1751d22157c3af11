/* libpmi_reload LIBRARY: loads it, joins, leaves and unloads it, often. Memory stays as it was after the first time. */
#include <dlfcn.h>
#include <stdio.h>

static long pages(void) {
    long size = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    if (!statm || fscanf(statm, "%ld", &size) != 1)
        return -1;
    fclose(statm);
    return size;
}

int main(int argc, char **argv) {
    long early = 0;
    for (int life = 0; life < 500 && argc > 1; life++) {
        void *library = dlopen(argv[1], RTLD_NOW);
        if (!library) {
            puts(dlerror());
            return 2;
        }
        int (*init)(int *) = dlsym(library, "PMI_Init"), (*finalize)(void) = dlsym(library, "PMI_Finalize"), spawned;
        if (init(&spawned) != 0 || finalize() != 0)
            return 3;
        dlclose(library);
        if (life == 10)
            early = pages();
    }
    printf("%ld pages more\n", pages() - early);
    return 0;
}
