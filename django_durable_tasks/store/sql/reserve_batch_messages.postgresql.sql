-- Records one batch message for each queue and task name that has none outstanding; returns them. The rows are written
-- in the order of the parameters, which the caller has sorted.
-- If all are outstanding, the statement only reads, because each call for a batch executes it.
-- In a separate transaction the statement does not wait for the disk: a lost record leads to one more message.
WITH asked AS MATERIALIZED (
  SELECT * FROM unnest(%(queues)s::text[], %(names)s::text[]) AS asked (queue, name)
   WHERE NOT EXISTS (SELECT 1 FROM durable_tasks_batch_message AS known
                      WHERE known.queue = asked.queue AND known.name = asked.name AND known.due_at > clock_timestamp())),
unflushed AS (SELECT set_config('synchronous_commit', 'off', true) AS setting)
INSERT INTO durable_tasks_batch_message AS message (queue, name, due_at, publish_count, number)
SELECT asked.queue, asked.name, clock_timestamp() + %(first)s * interval '1 second', 1, 1 FROM asked, unflushed
    ON CONFLICT (queue, name) DO UPDATE
   SET due_at = clock_timestamp() + LEAST(%(first)s * 2 ^ LEAST(message.publish_count, 10), %(longest)s) * interval '1 second',
       publish_count = message.publish_count + 1, number = message.number + 1
 WHERE message.due_at IS NULL OR message.due_at <= clock_timestamp()
RETURNING message.queue, message.name, message.number, message.publish_count
