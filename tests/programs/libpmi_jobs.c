/* A job of one rank publishes a name and spawns three ranks of itself in two programs, which look it up and find a pair. `libpmi_jobs abort`:
 * rank 1 aborts with 42 while the others wait for it; `libpmi_jobs abort thread`: by a thread, while it waits for them itself. */
#include <pthread.h>
#include <slurm/pmi.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void *abort_later(void *nothing) {
    usleep(100 * 1000);
    PMI_Abort(42, "the sea is dry");
    return nothing;
}

int main(int argc, char **argv) {
    int spawned, rank, size, appnum;
    char name[256], port[256] = "", value[1024] = "";
    if (PMI_Init(&spawned) != PMI_SUCCESS)
        return 2;
    PMI_Get_rank(&rank);
    PMI_Get_size(&size);
    PMI_Get_appnum(&appnum);
    PMI_KVS_Get_my_name(name, sizeof name);
    if (argc > 1 && strcmp(argv[1], "abort") == 0) {
        puts("aborting");
        fflush(stdout);
        pthread_t thread;
        if (rank == 1 && argc == 2)
            PMI_Abort(42, "the sea is dry");
        if (rank == 1)
            pthread_create(&thread, NULL, abort_later, NULL);
        if (rank < 2)
            PMI_Barrier();
        pause();
    } else if (argc > 1) {
        int found = PMI_KVS_Get(name, "greeting", value, sizeof value), known = PMI_Lookup_name("parent", port);
        printf("child %d of %d: spawned %d, %s, program %d, %d '%s', %d '%s'\n", rank, size, spawned, argv[1], appnum, found, value,
               known, port);
        PMI_Barrier();
        if (rank == 0)
            PMI_Unpublish_name("parent");
    } else {
        const char *commands[] = {argv[0], argv[0]};
        const char *first[] = {"first", NULL}, *second[] = {"the second", NULL};
        const char **arguments[] = {first, second};
        int ranks[] = {1, 2}, sizes[] = {1, 0}, errors[2] = {7, 7};
        const PMI_keyval_t directory[] = {{"wdir", "/"}};
        const PMI_keyval_t *infos[] = {directory, NULL};
        PMI_keyval_t pair[] = {{"greeting", "hello; child"}};
        int published = PMI_Publish_name("parent", "tag#0$x");
        int code = PMI_Spawn_multiple(2, commands, arguments, ranks, sizes, infos, 1, pair, errors);
        printf("parent: spawned %d, publish %d, spawn %d, errors %d %d\n", spawned, published, code, errors[0], errors[1]);
    }
    return PMI_Finalize();
}
