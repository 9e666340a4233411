-- Inserts audit entries, which the recorder passes as JSON.
INSERT INTO durable_tasks_audit_entry
       (tenant_id, source, actor, operation, object_type, object_id, count, object_ids, before, after, reason, address)
SELECT tenant_id, source, actor, operation, object_type, object_id, count, object_ids, before, after, reason, address
  FROM json_to_recordset(%(entries)s::json)
       AS entry (tenant_id bigint, source text, actor text, operation text, object_type text, object_id text,
                 count integer, object_ids jsonb, before jsonb, after jsonb, reason text, address inet)
