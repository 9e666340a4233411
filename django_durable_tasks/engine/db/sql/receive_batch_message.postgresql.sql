-- An older message than the outstanding one changes nothing.
-- In a separate transaction the statement does not wait for the disk: a lost write delays one message.
UPDATE durable_tasks_batch_message AS message
   SET due_at = NULL, publish_count = 0
  FROM (SELECT set_config('synchronous_commit', 'off', true) AS setting) AS unflushed
 WHERE message.queue = %(queue)s AND message.name = %(name)s AND message.number <= %(number)s AND message.due_at IS NOT NULL
