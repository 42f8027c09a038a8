package io.kubesvc.clouddriver;

import com.fasterxml.jackson.databind.JsonNode;
import com.netflix.spinnaker.clouddriver.data.task.Task;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Pattern;

/** Deletes a manifest by its name, or those of some kinds by their labels. */
class DeleteManifest implements Operation {
  private static final String PHASE = "DELETE_KUBERNETES_MANIFEST";
  /** kubectl prints {@code configmap "conf" deleted} for each. */
  private static final Pattern DELETED = Pattern.compile("^\\S+ \"([^\"]+)\"", Pattern.MULTILINE);

  private final KubernetesAccount account;
  private final JsonNode description;
  private final Kubectl kubectl;

  DeleteManifest(KubernetesAccount account, JsonNode description, Kubectl kubectl) {
    this.account = account;
    this.description = description;
    this.kubectl = kubectl;
  }

  @Override
  public Result run(Task task) throws Exception {
    task.updateStatus(PHASE, "Starting delete operation in account " + account.getName() + "...");
    var namespace = description.path("location").asText("");
    var result = new Result();
    var named = description.path("manifestName").asText("").split(" ", 2);
    if (named.length == 2) {
      delete(task, result, namespace, named[0], named[1]);
    }
    for (var kind : description.path("kinds")) {
      delete(task, result, namespace, kind.asText(), "");
    }
    task.updateStatus(PHASE, " delete operation completed successfully for all applicable resources");
    return result;
  }

  private void delete(Task task, Result result, String namespace, String kind, String name) throws Exception {
    task.updateStatus(PHASE, "Looking up resource properties for " + kind + "...");
    task.updateStatus(
        PHASE,
        String.format(
            "Calling delete operation for resourceKubernetesCoordinates(kind=%s, namespace=%s, name=%s)...",
            kind, namespace, name));
    List<String> line = new ArrayList<>();
    line.add("delete");
    line.add(name.isEmpty() ? kind : kind + "/" + name);
    var selector = selector();
    if (!selector.isEmpty()) {
      line.add("-l=" + selector);
    }
    line.add("--ignore-not-found=true");
    var options = description.path("options");
    if (options.hasNonNull("propagationPolicy")) {
      line.add("--cascade=" + options.get("propagationPolicy").asText().toLowerCase());
    }
    if (options.hasNonNull("gracePeriodSeconds")) {
      line.add("--grace-period=" + options.get("gracePeriodSeconds").asText());
    }
    var printed = kubectl.run(account, namespace, "", line.toArray(String[]::new));
    var deleted = DELETED.matcher(printed);
    while (deleted.find()) {
      result.name(namespace, kind + " " + deleted.group(1));
    }
    task.updateStatus(PHASE, " delete operation completed successfully for " + name);
  }

  /** Selectors of the kind EQUALS, which are what callers send. */
  private String selector() {
    var terms = new ArrayList<String>();
    for (var selector : description.at("/labelSelectors/selectors")) {
      terms.add(selector.path("key").asText() + "=" + selector.at("/values/0").asText());
    }
    return String.join(",", terms);
  }
}
