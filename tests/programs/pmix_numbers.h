/* Numbers that ranks tell each other over PMIx, each under a key of its own. */
#include <pmix.h>
#include <stdbool.h>

static pmix_proc_t me;

/* The number is told with the next commit. */
static inline void put(pmix_scope_t scope, const char *key, uint32_t number) {
    pmix_value_t value;
    PMIX_VALUE_LOAD(&value, &number, PMIX_UINT32);
    PMIx_Put(scope, key, &value);
}

static inline long get(pmix_rank_t rank, const char *key, const pmix_info_t *how) {
    pmix_proc_t proc;
    pmix_value_t *value = NULL;
    PMIX_LOAD_PROCID(&proc, me.nspace, rank);
    pmix_status_t status = PMIx_Get(&proc, key, how, 1, &value);
    if (status != PMIX_SUCCESS)
        return status;
    long number = value->data.uint32;
    PMIX_VALUE_RELEASE(value);
    return number;
}

/* What a rank tells within so many seconds, or a negative status. */
static inline long get_within(pmix_rank_t rank, const char *key, int seconds) {
    pmix_info_t info;
    PMIX_INFO_LOAD(&info, PMIX_TIMEOUT, &seconds, PMIX_INT);
    return get(rank, key, &info);
}

/* What is known of a rank already, or a negative status. */
static inline long get_known(pmix_rank_t rank, const char *key) {
    pmix_info_t info;
    bool yes = true;
    PMIX_INFO_LOAD(&info, PMIX_IMMEDIATE, &yes, PMIX_BOOL);
    return get(rank, key, &info);
}
