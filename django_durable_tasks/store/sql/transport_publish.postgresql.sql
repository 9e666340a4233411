-- Publishes to the queue of this name, or to the queues that a direct exchange binds to this key, in one statement.
-- A queue that has expired receives nothing.
INSERT INTO durable_tasks_transport_message (queue, rank, deliveries, body, expires_at)
SELECT queue.id, %(rank)s::smallint, 0, %(body)s::text,
    clock_timestamp() + least(%(ttl)s::bigint, queue.message_ttl) * interval '1 millisecond'
FROM durable_tasks_transport_queue AS queue
WHERE (
    queue.unused_until IS NULL OR queue.unused_until > statement_timestamp() OR EXISTS (
        SELECT 1 FROM durable_tasks_transport_consumer AS consumer
        WHERE consumer.id = queue.consumer AND consumer.expires_at > statement_timestamp()
    )
) AND queue.id IN (
    SELECT named.id FROM durable_tasks_transport_queue AS named WHERE named.name = %(queue)s::text
    UNION ALL
    SELECT binding.queue FROM durable_tasks_transport_exchange AS exchange
    JOIN durable_tasks_transport_binding AS binding ON binding.exchange = exchange.id
    WHERE exchange.name = %(exchange)s::text AND binding.routing_key = %(key)s::text
)
