-- How Argo CD judges a KubesvcAccount or a KubesvcMigration, by the conditions that kstatus (and so Flux) reads as well.
local hs = { status = "Progressing", message = "no operator has seen the object yet" }
local status = obj.status
if status == nil or status.observedGeneration == nil or status.observedGeneration < 0 then
  return hs
end
if obj.metadata.generation ~= nil and status.observedGeneration ~= obj.metadata.generation then
  hs.message = "the operator has not seen the last change yet"
  return hs
end
local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  conditions[condition.type] = condition
end
local stalled, reconciling, ready = conditions.Stalled, conditions.Reconciling, conditions.Ready
if stalled ~= nil and stalled.status == "True" then
  hs.status = "Degraded"
  hs.message = stalled.reason .. ": " .. stalled.message
elseif reconciling ~= nil and reconciling.status == "True" then
  hs.message = reconciling.reason .. ": " .. reconciling.message
elseif ready ~= nil and ready.status == "True" then
  hs.status = "Healthy"
  hs.message = ready.message
elseif ready ~= nil then
  hs.message = ready.reason .. ": " .. ready.message
end
return hs
