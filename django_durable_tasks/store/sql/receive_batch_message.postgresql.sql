-- An older message than the outstanding one only limits the wait for that one: a worker receives messages again, so what
-- it does not receive within `longest` seconds is lost.
-- In a separate transaction the statement does not wait for the disk: a lost write delays one message.
UPDATE durable_tasks_batch_message AS message
   SET due_at = CASE WHEN message.number > %(number)s THEN clock_timestamp() + %(longest)s * interval '1 second' END,
       publish_count = CASE WHEN message.number > %(number)s THEN message.publish_count ELSE 0 END
  FROM (SELECT set_config('synchronous_commit', 'off', true) AS setting) AS unflushed
 WHERE message.queue = %(queue)s AND message.name = %(name)s 
   AND CASE WHEN message.number > %(number)s THEN message.due_at > clock_timestamp() + %(longest)s * interval '1 second'
            ELSE message.due_at IS NOT NULL END
