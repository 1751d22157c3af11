/* A job of one rank spawns three ranks of itself in two commands, with a pair that they find and a word each. */
#include <slurm/pmi2.h>
#include <stdio.h>

int main(int argc, char **argv) {
    int spawned, size, rank, appnum, length;
    char job[256] = "", value[1024] = "";
    if (PMI2_Init(&spawned, &size, &rank, &appnum) != PMI2_SUCCESS)
        return 2;
    if (argc > 1) {
        PMI2_KVS_Get(NULL, PMI2_ID_NULL, "greeting", value, sizeof value, &length);
        printf("child %d of %d: %s, appnum %d, found '%s'\n", rank, size, argv[1], appnum, value);
        PMI2_KVS_Fence();
    } else {
        const char *commands[] = {argv[0], argv[0]};
        const char *first[] = {"first", NULL}, *second[] = {"the; second", NULL};
        const char **arguments[] = {first, second};
        int counts[] = {1, 1}, ranks[] = {1, 2}, no_infos[] = {0, 0}, errors[3] = {0};
        const struct MPID_Info *none[] = {NULL, NULL};
        struct MPID_Info pair = {.key = "greeting", .value = "hello; child"};
        const struct MPID_Info *preput[] = {&pair};
        int code = PMI2_Job_Spawn(2, commands, counts, arguments, ranks, no_infos, none, 1, preput, job, sizeof job, errors);
        printf("parent: spawn %d, a job %s\n", code, job[0] ? "with a name" : "without a name");
    }
    PMI2_Finalize();
    return 0;
}
