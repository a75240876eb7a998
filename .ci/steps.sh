# Steps of a build: each is announced, timed and limited in time; the first that fails ends the run. Sourced by run.

step_limit=3300  # seconds: more than any step needs on two cores, so that only a step that hangs reaches it
passed=()
skipped=()
unstable=()

step() {  # step NAME COMMAND...
    carry_out once "$@"
}

# A test that fails ends the run. Only tests with a reason in .ci/repeated.txt are run once more, and named at the end.
tests() {  # tests NAME COMMAND...: a step whose command is pytest, however it is called
    carry_out failed-again "$@"
}

carry_out() {  # carry_out once|failed-again NAME COMMAND...
    local how=$1 name=$2 began=$SECONDS status=0
    shift 2
    printf '\n=== %s\n' "$name"
    current=$name
    limited "$@" || status=$?
    if [ "$how:$status" = failed-again:1 ]; then  # 1 says that tests failed
        python .ci/repeated.py
        printf -- '\n--- %s: what failed is run once more\n' "$name"
        limited env PYTEST_ADDOPTS="${PYTEST_ADDOPTS:-} --last-failed --last-failed-no-failures=none --cov-append" "$@"
        unstable+=("$name")
    elif [ "$status" -ne 0 ]; then
        return "$status"
    fi
    current=
    passed+=("$name")
    printf -- '--- %s: passed in %d s\n' "$name" $((SECONDS - began))
}

limited() {
    timeout --kill-after=30 "$step_limit" "$@"
}

skip() {  # skip NAME REASON
    printf '\n=== %s\n--- skipped: %s\n' "$1" "$2"
    skipped+=("$1")
}

in_parallel() {  # in_parallel "PART ..." PART...: the first ones run at the same time as the others, and what they print comes after them
    local others=$1 folder job status=0 part kind name
    folder=$(mktemp -d)
    shift
    (
        passed=() skipped=() unstable=()
        trap 'results >"$folder/results"' EXIT
        for part in $others; do "$part"; done
    ) >"$folder/log" 2>&1 &
    job=$!
    for part in "$@"; do "$part"; done
    wait "$job" || status=$?
    cat "$folder/log"
    while read -r kind name; do
        case $kind in
            passed) passed+=("$name") ;;
            skipped) skipped+=("$name") ;;
            unstable) unstable+=("$name") ;;
            current) current=$name ;;
        esac
    done <"$folder/results"
    rm -r "$folder"
    return "$status"
}

results() {  # a line for each step, and for the one that failed
    for name in "${passed[@]}"; do printf 'passed %s\n' "$name"; done
    for name in "${skipped[@]}"; do printf 'skipped %s\n' "$name"; done
    for name in "${unstable[@]}"; do printf 'unstable %s\n' "$name"; done
    printf 'current %s\n' "${current:-}"
}

summary() {  # summary EXIT_STATUS
    printf '\n'
    for name in "${skipped[@]}"; do printf 'skipped: %s\n' "$name"; done
    for name in "${unstable[@]}"; do printf 'UNSTABLE: %s passed only when what had failed was run again\n' "$name"; done
    if [ "$1" -ne 0 ]; then
        printf 'CI FAILED at "%s" (exit %d): ' "${current:-setup}" "$1"
    else
        printf 'CI PASSED: '
    fi
    printf '%d steps passed, %d skipped, %d s\n' ${#passed[@]} ${#skipped[@]} "$SECONDS"
}
