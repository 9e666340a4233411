INSERT INTO durable_tasks_notification_event (setting_id, type, subject, data, created_at, due_at)
SELECT setting_id, type, subject, data, created_at, due_at
  FROM json_to_recordset(%(rows)s::json)
       AS row (setting_id bigint, type text, subject text, data jsonb, created_at timestamptz, due_at timestamptz)
