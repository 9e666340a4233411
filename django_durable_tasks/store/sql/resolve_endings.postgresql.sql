-- Resolves edges of ended tasks in one statement, if all of these edges are met and all of their tasks need all of
-- their edges. Otherwise it resolves nothing, and the ORM form does it.
-- Lock order as in the ORM form: ending events first, then all task rows in primary-key order. Edges are written only
-- under the lock of their task. A task that was replayed after its event is not locked as an upstream: it may be
-- ending again, and that transaction locks it before tasks with smaller ids.
-- A statement sees rows as of its start, and only a locked row is current. Therefore the conditions read the locked
-- rows, unresolved edges are not counted again, each edge is resolved at most once, and the count of the locked row
-- is reduced by the number of edges resolved.
-- In a separate transaction the statement does not wait for the disk. If the server loses the COMMIT in a crash,
-- the ending events still exist and the messages are stale.
-- FULL JOIN, because the planner estimates one row for each list and would choose a nested loop, which is quadratic
-- here. It cannot use a nested loop for a FULL JOIN. The other joins read single rows by primary key. num_nonnulls()
-- < 1 is a condition whose selectivity the planner cannot estimate. With old statistics it would choose a plan by an
-- IS NULL condition and read all unresolved edges.
WITH event AS MATERIALIZED (
  SELECT id, task_id, epoch, workflow_id, delta
    FROM durable_tasks_ending_event
   WHERE id = ANY (%(events)s::bigint[]) AND NOT resolved
   ORDER BY id
     FOR UPDATE SKIP LOCKED),
fresh AS MATERIALIZED (
  SELECT event.id, event.task_id, event.epoch
    FROM event LEFT JOIN durable_tasks_task AS task ON task.id = event.task_id
   WHERE COALESCE(task.epoch, event.epoch) = event.epoch),
waiting AS MATERIALIZED (
  SELECT edge.id, edge.task_id, edge.dependency_type, fresh.id AS event_id, fresh.task_id AS upstream, fresh.epoch
    FROM fresh
   CROSS JOIN LATERAL (
     SELECT id, task_id, dependency_type
       FROM durable_tasks_dependency
      WHERE depends_on_id = fresh.task_id AND depends_on_id IS NOT NULL AND num_nonnulls(resolved_at, outcome) < 1
      LIMIT %(limit)s) AS edge
   LIMIT %(limit)s),
locked AS MATERIALIZED (
  SELECT id, epoch, status, join_count, unresolved_dependencies_count AS wants,
         queue = ANY (%(open)s::text[]) AND run_at <= clock_timestamp() AND expires_at IS NULL AND overlap_key IS NULL
         AND NOT in_batch AND name <> ALL (%(limited)s::text[]) AS publish
    FROM durable_tasks_task
   WHERE id = ANY (ARRAY(SELECT task_id FROM fresh) || ARRAY(SELECT task_id FROM waiting))
   ORDER BY id
     FOR NO KEY UPDATE),
edge_state AS MATERIALIZED (
  SELECT waiting.id, waiting.event_id, up.status AS outcome, child.id AS task_id, child.status, child.wants, child.publish,
         COALESCE(child.join_count IS NULL AND child.id IS NOT NULL AND up.epoch = waiting.epoch
                  AND CASE waiting.dependency_type
                           WHEN 'MUST_SUCCEED' THEN up.status = 'SUCCESS' WHEN 'MUST_FAIL' THEN up.status = 'FAILED'
                           ELSE up.status IN ('SUCCESS', 'FAILED', 'CANCELLED', 'SKIPPED', 'EXPIRED') END, false) AS fits
    FROM waiting
    FULL JOIN locked AS up ON up.id = waiting.upstream
    FULL JOIN locked AS child ON child.id = waiting.task_id),
met AS MATERIALIZED (
  SELECT * FROM edge_state WHERE id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM edge_state WHERE id IS NOT NULL AND NOT fits)),
resolved_edge AS (
  UPDATE durable_tasks_dependency AS edge
     SET resolved_at = clock_timestamp(), outcome = met.outcome, met = true
    FROM met
   WHERE edge.id = met.id AND num_nonnulls(edge.resolved_at, edge.outcome) < 1
  RETURNING met.event_id, met.task_id, met.status, met.wants, met.publish),
count_left AS MATERIALIZED (
  SELECT task_id, publish, wants - count(*)::integer AS wants
    FROM resolved_edge
   WHERE status = 'BLOCKED'
   GROUP BY task_id, publish, resolved_edge.wants),
moved AS (
  UPDATE durable_tasks_task AS task
     SET status = CASE WHEN count_left.wants > 0 THEN 'BLOCKED' WHEN count_left.publish THEN 'QUEUED' ELSE 'PENDING' END,
         epoch = task.epoch + CASE WHEN count_left.wants > 0 THEN 0 ELSE 1 END,
         due_at = CASE WHEN count_left.wants > 0 THEN NULL
                         WHEN count_left.publish THEN clock_timestamp() + %(wait)s * interval '1 second'
                         ELSE GREATEST(task.run_at, clock_timestamp()) END,
         ready_at = NULL,
         queued_at = CASE WHEN count_left.wants <= 0 AND count_left.publish THEN clock_timestamp() END,
         publish_count = CASE WHEN count_left.wants <= 0 AND count_left.publish THEN 1 ELSE task.publish_count END,
         unresolved_dependencies_count = GREATEST(count_left.wants, 0), updated_at = clock_timestamp()
    FROM count_left
   WHERE task.id = count_left.task_id
  RETURNING task.status, task.id, task.epoch, task.publish_count, task.name, task.queue, task.priority, task.options,
            task.idempotency_key, task.run_at, task.expires_at, task.overlap_key, task.waiting_for_limit,
            task.tenant_id, task.limit_key, task.weight, task.ready_at),
done AS MATERIALIZED (
  SELECT id, workflow_id IS NOT NULL AND delta <> 0 AS counts
    FROM event
   WHERE (SELECT count(*) FROM waiting) < %(limit)s
     AND NOT EXISTS (SELECT 1 FROM edge_state WHERE id IS NOT NULL AND NOT fits)
     AND id <> ALL (ARRAY(SELECT DISTINCT still.event_id
                            FROM (SELECT event_id FROM waiting EXCEPT ALL SELECT event_id FROM resolved_edge) AS still))),
marked AS (
  UPDATE durable_tasks_ending_event AS ending SET resolved = true FROM done WHERE ending.id = done.id AND done.counts),
removed AS (
  DELETE FROM durable_tasks_ending_event AS ending USING done WHERE ending.id = done.id AND NOT done.counts)
SELECT (SELECT count(*) FROM event), (SELECT count(*) FROM waiting) >= %(limit)s AND EXISTS (SELECT 1 FROM resolved_edge),
       ARRAY(SELECT id FROM event EXCEPT SELECT id FROM done), one.setting, moved.*
  FROM (SELECT CASE WHEN %(alone)s THEN set_config('synchronous_commit', 'off', true) END AS setting) AS one
  LEFT JOIN moved ON moved.status <> 'BLOCKED'
