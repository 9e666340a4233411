-- SKIP LOCKED: runs whose rows are not locked do not wait for rows that other transactions have locked.
WITH free AS (
  SELECT task.id, task.epoch, task.run_id, beat.lease
    FROM unnest(%(ids)s::uuid[], %(epochs)s::bigint[], %(runs)s::uuid[], %(leases)s::float8[])
         AS beat (id, epoch, run_id, lease)
    JOIN durable_tasks_task AS task
      ON task.id = beat.id AND task.epoch = beat.epoch AND task.run_id = beat.run_id AND task.status = 'RUNNING'
   ORDER BY task.id
     FOR NO KEY UPDATE OF task SKIP LOCKED
)
UPDATE durable_tasks_task AS task
   SET lease_until = clock_timestamp() + free.lease * interval '1 second'
  FROM free
 WHERE task.id = free.id AND task.epoch = free.epoch AND task.run_id = free.run_id AND task.status = 'RUNNING'
RETURNING task.run_id, task.cancel_requested_at IS NOT NULL
