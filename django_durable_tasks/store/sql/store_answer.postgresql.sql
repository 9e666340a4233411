-- Stores the answer to the request of an Idempotency-Key.
UPDATE durable_tasks_idempotent_request
   SET status_code = %(status_code)s, body = %(body)s::jsonb, headers = %(headers)s::jsonb
 WHERE id = %(id)s
