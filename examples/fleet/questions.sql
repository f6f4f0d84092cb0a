-- For DuckDB and for Spark.

-- How long do regions take, by host and build? A quantile is the least duration that this part of all does not exceed.
SELECT name, host, build, count(*) AS regions,
  CAST(percentile_disc(0.5) WITHIN GROUP (ORDER BY duration_ns) AS BIGINT) AS p50_ns,
  CAST(percentile_disc(0.99) WITHIN GROUP (ORDER BY duration_ns) AS BIGINT) AS p99_ns
FROM samples
GROUP BY name, host, build
ORDER BY name, host, build;

-- Which part explains that they differ? A part's share is its covariance with the duration, divided by the duration's
-- variance. The parts of a region add up to its duration, so the shares add up to 1.
WITH spread AS (
  SELECT name, nullif(var_pop(duration_ns), 0) AS variance,
    covar_pop(on_cpu_ns, duration_ns) AS on_cpu, covar_pop(guest_ns, duration_ns) AS guest,
    covar_pop(host_interrupt_ns, duration_ns) AS host_interrupt,
    covar_pop(kernel_ns, duration_ns) AS kernel, covar_pop(vmm_ns, duration_ns) AS vmm,
    covar_pop(stolen_ns, duration_ns) AS stolen, covar_pop(behind_ns, duration_ns) AS behind,
    covar_pop(runnable_ns, duration_ns) AS runnable, covar_pop(halted_ns, duration_ns) AS halted,
    covar_pop(blocked_ns, duration_ns) AS blocked, covar_pop(off_cpu_ns, duration_ns) AS off_cpu,
    covar_pop(idle_ns, duration_ns) AS idle, covar_pop(unknown_ns, duration_ns) AS unknown
  FROM samples
  GROUP BY name
)
SELECT name, part, round(covariance / variance, 4) + 0 AS share
FROM spread
UNPIVOT (covariance FOR part IN (on_cpu, guest, host_interrupt, kernel, vmm, stolen, behind, runnable, halted, blocked,
  off_cpu, idle, unknown))
WHERE variance > 0
ORDER BY name, share DESC, part;

-- Which were the ten slowest of each, and what took most of their time? The tenth longest duration first: an engine
-- finds that without sorting all samples.
WITH slow AS (
  SELECT name, min(duration_ns) AS tenth_ns
  FROM (
    SELECT name, duration_ns, row_number() OVER (PARTITION BY name ORDER BY duration_ns DESC) AS place
    FROM samples
  ) AS ranked
  WHERE place <= 10
  GROUP BY name
), slowest AS (
  SELECT samples.*,
    row_number() OVER (PARTITION BY samples.name ORDER BY duration_ns DESC, session, begin_ns, id) AS place
  FROM samples JOIN slow ON samples.name = slow.name AND samples.duration_ns >= slow.tenth_ns
)
SELECT name, duration_ns,
  CASE greatest(on_cpu_ns, guest_ns, host_interrupt_ns, kernel_ns, vmm_ns, stolen_ns, behind_ns, runnable_ns, halted_ns,
    blocked_ns, off_cpu_ns, idle_ns, unknown_ns)
    WHEN on_cpu_ns THEN 'on_cpu' WHEN guest_ns THEN 'guest' WHEN kernel_ns THEN 'kernel' WHEN vmm_ns THEN 'vmm'
    WHEN host_interrupt_ns THEN 'host_interrupt' WHEN stolen_ns THEN 'stolen' WHEN behind_ns THEN 'behind'
    WHEN halted_ns THEN 'halted' WHEN runnable_ns THEN 'runnable' WHEN blocked_ns THEN 'blocked' WHEN off_cpu_ns THEN 'off_cpu'
    WHEN idle_ns THEN 'idle' ELSE 'unknown' END AS mostly,
  host, build, session, session_uuid, client, id, t_ns
FROM slowest
WHERE place <= 10
ORDER BY name, place;
