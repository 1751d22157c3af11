//! The time of day does not matter: the clocks of the manager, the API server and a node differ by hours.

use lattice_tests::mpi::compile_text;

use super::with_fabric;

/// A library that is loaded before all other libraries and advances a process's time of day by the seconds in
/// `CLOCK_AHEAD`.
const AHEAD: &str = r#"
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <stdlib.h>
    #include <time.h>
    int clock_gettime(clockid_t clock, struct timespec *now) {
        static int (*real)(clockid_t, struct timespec *);
        if (!real)
            real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
        int code = real(clock, now);
        const char *ahead = getenv("CLOCK_AHEAD");
        if (code == 0 && clock == CLOCK_REALTIME && ahead)
            now->tv_sec += atol(ahead);
        return code;
    }"#;

#[test]
fn daemons_whose_clocks_are_hours_apart_give_out_credentials_and_take_them_back() {
    let script = r#"
        afresh
        ahead() { kill_dead $1; CLOCK_AHEAD=$(($2 * 3600)) LD_PRELOAD=$CLOCK again $1; }
        run() {
            alloc=$(lattice alloc create -N 2)
            lattice launch --alloc $alloc --pmi none -n 2 bash -c 'echo $SLINGSHOT_DEVICES' || exit
        }
        # Whether a log's last line is later than so many hours from now.
        says_later() { [[ $(tail -n 1 "$here/$1.log") > $(date -u -d "+$2 hours" +%FT%T) ]]; }
        ahead api 12; ahead node1 5
        says_later api 11 && says_later node1 4 || exit 95
        # The manager's dates are nobody's either.
        faults '[{"on": "create", "fault": {"retry_at": {"seconds": 1, "hours_off": 7}}},
                 {"on": "auth", "fault": {"retry_at": {"seconds": 1, "hours_off": -7}}},
                 {"on": "delete", "fault": "expire_tokens"}]'
        run; release $alloc; all_given_back
        sed -nE 's/.*pause_ms=([0-9]+).*/\1/p' "$here/api.log" | tail -n 2 | while read -r pause; do
            [ "$pause" -ge 1000 ] && [ "$pause" -lt 60000 ] && echo "paused as it was asked to"
        done
        # Time goes back by half a day while credentials are held.
        run
        killed api; says_later api 11 && exit 94
        release $alloc; all_given_back"#;
    let directory = tempfile::tempdir().expect("a directory");
    let library = compile_text(directory.path(), "clock", AHEAD, &["-shared", "-fPIC"]);
    let devices = "cxi0,cxi1";
    let paused = "paused as it was asked to";
    let given_back = "all given back";
    let outcome = with_fabric(script).env("CLOCK", library).run();
    outcome.exits(0).prints_lines([devices, devices, given_back, paused, paused, devices, devices, given_back]);
}
