/* With `publish`, rank 0 publishes a value in each range, and all ranks look for all of them; any other argument is the name of a launch whose
   rank looks for those of that one. */
#include <pmix.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *name;
    pmix_data_range_t range;
} RANGES[] = {{"PROC_LOCAL", PMIX_RANGE_PROC_LOCAL}, {"LOCAL", PMIX_RANGE_LOCAL},   {"NAMESPACE", PMIX_RANGE_NAMESPACE},
              {"SESSION", PMIX_RANGE_SESSION},       {"GLOBAL", PMIX_RANGE_GLOBAL}, {"CUSTOM", PMIX_RANGE_CUSTOM}};
enum { COUNT = sizeof RANGES / sizeof *RANGES };

static void publish(const pmix_proc_t *me) {
    for (int i = 0; i < COUNT; i++) {
        pmix_info_t infos[3];
        pmix_proc_t chosen = *me;
        pmix_data_range_t range = RANGES[i].range;
        int custom = range == PMIX_RANGE_CUSTOM;
        chosen.rank = 1;
        PMIX_INFO_LOAD(&infos[0], RANGES[i].name, "a value", PMIX_STRING);
        PMIX_INFO_LOAD(&infos[1], PMIX_RANGE, &range, PMIX_DATA_RANGE);
        if (custom)
            PMIX_INFO_LOAD(&infos[2], PMIX_EVENT_CUSTOM_RANGE, &chosen, PMIX_PROC);
        pmix_status_t status = PMIx_Publish(infos, custom ? 3 : 2);
        if (status != PMIX_SUCCESS)
            printf("%s: %s\n", RANGES[i].name, PMIx_Error_string(status));
    }
}

static void look(const char *who) {
    char line[256];
    size_t length = snprintf(line, sizeof line, "%s:", who);
    for (int i = 0; i < COUNT; i++) {
        pmix_pdata_t found;
        pmix_info_t info;
        pmix_data_range_t range = PMIX_RANGE_GLOBAL;
        PMIX_PDATA_CONSTRUCT(&found);
        PMIX_LOAD_KEY(found.key, RANGES[i].name);
        PMIX_INFO_LOAD(&info, PMIX_RANGE, &range, PMIX_DATA_RANGE);
        if (PMIx_Lookup(&found, 1, &info, 1) == PMIX_SUCCESS)
            length += snprintf(line + length, sizeof line - length, " %s", RANGES[i].name);
    }
    puts(line);
    fflush(stdout);
}

int main(int argc, char **argv) {
    pmix_proc_t me;
    char who[32];
    if (argc < 2 || PMIx_Init(&me, NULL, 0) != PMIX_SUCCESS)
        return 2;
    if (strcmp(argv[1], "publish")) {
        look(argv[1]);
    } else {
        if (me.rank == 0)
            publish(&me);
        PMIx_Fence(NULL, 0, NULL, 0);
        snprintf(who, sizeof who, "rank %u", me.rank);
        look(who);
        PMIx_Fence(NULL, 0, NULL, 0);
        if (me.rank == 0) {
            fclose(fopen("published", "w"));
            while (access("looked", F_OK))
                usleep(20000);
        }
    }
    PMIx_Finalize(NULL, 0);
    return 0;
}
