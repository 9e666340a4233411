-- KEYS: the mark "filled". ARGV: the new mark (ms), the one that was seen before ('' for none).
-- A mark that was removed meanwhile is not written again: a change was lost, and the set has to be filled again.
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[2] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PXAT', ARGV[1])
return 1
