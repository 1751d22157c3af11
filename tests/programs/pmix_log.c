/* Each rank writes so many lines of 64 bytes to its standard output through its server, in one call. */
#include <pmix.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE 64

int main(int argc, char **argv) {
    pmix_proc_t me;
    pmix_info_t text;
    size_t lines = argc > 1 ? strtoul(argv[1], NULL, 10) : 1;
    char *bytes = malloc(lines * LINE + 1);
    if (!bytes || PMIx_Init(&me, NULL, 0) != PMIX_SUCCESS)
        return 2;
    memset(bytes, 'a' + me.rank % 26, lines * LINE);
    for (size_t line = 1; line <= lines; line++)
        bytes[line * LINE - 1] = '\n';
    bytes[lines * LINE] = 0;
    PMIX_INFO_LOAD(&text, PMIX_LOG_STDOUT, bytes, PMIX_STRING);
    pmix_status_t status = PMIx_Log(&text, 1, NULL, 0);
    if (status != PMIX_SUCCESS)
        fprintf(stderr, "rank %u: %s\n", me.rank, PMIx_Error_string(status));
    PMIx_Finalize(NULL, 0);
    return 0;
}
