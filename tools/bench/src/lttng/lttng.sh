# Traces lttng.c in this folder with a separate session daemon. For each line on stdin, a number of
# events, prints one line: nanoseconds per event, events that LTTng discarded, bytes of its files.
cd "$1" || exit
for tool in lttng lttng-sessiond cc; do
    command -v $tool > /dev/null || { echo "there is no $tool here" >&2; exit 1; }
done
if [ "$(id -u)" = 0 ] && [ -z "$HYPERTRACE_BENCH_PRIVATE" ]; then
    # Root's daemon uses /run, whatever LTTNG_HOME is: this one gets a private /run.
    export HYPERTRACE_BENCH_PRIVATE=1
    exec unshare --mount --propagation private sh lttng.sh .
fi
if [ -n "$HYPERTRACE_BENCH_PRIVATE" ]; then
    mount -t tmpfs none /run || exit
fi
cc -O2 -I. -o program lttng.c -llttng-ust -ldl || exit
export LTTNG_HOME="$PWD" LTTNG_UST_ALLOW_BLOCKING=1
trap 'kill "$(cat pid)"' EXIT
trap 'exit 1' HUP INT PIPE TERM
lttng-sessiond --no-kernel --background --pidfile="$PWD/pid" > daemon.log 2>&1 || { cat daemon.log >&2; exit 1; }

quietly() {
    "$@" > lttng.log 2>&1 || { echo "error: $*: $(tr '\n' ' ' < lttng.log)"; return 1; }
}

# Nothing is lost: a full buffer blocks.
begin() {
    quietly lttng create bench --output="$PWD/trace" &&
    quietly lttng enable-channel --userspace --session=bench --subbuf-size=1M --num-subbuf=8 \
        --blocking-timeout=inf channel &&
    quietly lttng enable-event --userspace --session=bench --channel=channel hypertrace_bench:pair &&
    quietly lttng start bench
}

echo ready
while read -r events; do
    answer=$(
        begin || exit
        time=$(./program "$events")
        quietly lttng stop bench || exit
        discarded=$(lttng list bench | sed -n 's/.*Discarded events: *//p')
        echo "$time $discarded $(du -sb trace/ust | cut -f 1)"
    )
    lttng destroy bench > lttng.log 2>&1
    rm -rf trace
    # Last, because other rows are measured from here on.
    echo "$answer"
done
