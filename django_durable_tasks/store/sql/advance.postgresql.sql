-- ANY(id) in addition to the join: without it the planner reads the whole table, unless the table is much larger than
-- the batch.
UPDATE durable_tasks_recurring_task AS row
   SET next_run_at = moved.next_run_at, watermark_at = moved.watermark_at, runs_count = row.runs_count + moved.ran,
       last_run_at = COALESCE(moved.last_run_at, row.last_run_at)
  FROM unnest(%(id)s::uuid[], %(revision)s::bigint[], %(next_run_at)s::timestamptz[], %(watermark_at)s::timestamptz[],
              %(ran)s::bigint[], %(last_run_at)s::timestamptz[])
       AS moved (id, revision, next_run_at, watermark_at, ran, last_run_at)
 WHERE row.id = ANY (%(id)s::uuid[]) AND row.id = moved.id AND row.revision = moved.revision
