-- Tasks of different calls, each with its own times. The caller has checked that their keys are free. {columns}: see
-- states/inserts.py.
INSERT INTO durable_tasks_task
       ({columns}, run_at, due_at, expires_at, expected_duration, open_key, open_unique_key, unresolved_dependencies_count)
SELECT {fields}, start.moment,
       CASE WHEN status <> 'BLOCKED'
            THEN COALESCE(due_at, start.moment + COALESCE(wait, 0) * interval '1 second') END,
       COALESCE(expires_at, start.moment + expires_in * interval '1 second'),
       expected_duration * interval '1 second', key, unique_key, unresolved
  FROM json_to_recordset(%(rows)s::json)
       AS created ({record}, run_at timestamptz, due_at timestamptz, expires_at timestamptz, expected_duration float8,
                   wait float8, expires_in float8, unresolved integer)
 CROSS JOIN LATERAL (SELECT COALESCE(created.run_at, statement_timestamp()) AS moment) AS start
