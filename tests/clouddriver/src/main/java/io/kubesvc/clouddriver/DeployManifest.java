package io.kubesvc.clouddriver;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.netflix.spinnaker.clouddriver.data.task.Task;
import java.util.ArrayList;
import java.util.Map;
import java.util.stream.Collectors;

/** Applies manifests with Spinnaker's annotations and labels. Versions of names, artifacts and strategies are not there. */
class DeployManifest implements Operation {
  private static final String PHASE = "DEPLOY_KUBERNETES_MANIFEST";
  private static final ObjectMapper MAPPER = new ObjectMapper();

  private final KubernetesAccount account;
  private final JsonNode description;
  private final Kubectl kubectl;

  DeployManifest(KubernetesAccount account, JsonNode description, Kubectl kubectl) {
    this.account = account;
    this.description = description;
    this.kubectl = kubectl;
  }

  @Override
  public Result run(Task task) throws Exception {
    var where = " in account " + account.getName();
    task.updateStatus(PHASE, "Beginning deployment of manifests" + where + " ...");
    var manifests = new ArrayList<ObjectNode>();
    description.path("manifests").forEach(manifest -> manifests.add(manifest.deepCopy()));
    task.updateStatus(PHASE, "Sorting manifests by priority...");
    task.updateStatus(
        PHASE, "Deploy order is: " + manifests.stream().map(Kinds::fullName).collect(Collectors.joining(", ")));
    for (var manifest : manifests) {
      var kind = Kinds.text(manifest);
      task.updateStatus(PHASE, "Binding artifacts in " + Kinds.fullName(manifest) + "...");
      task.updateStatus(PHASE, "Finding deployer for " + kind + "...");
      task.updateStatus(PHASE, "Bound artifacts: []...");
      task.updateStatus(PHASE, "Finding deployer for " + kind + "...");
      task.updateStatus(
          PHASE,
          "Annotating manifest " + Kinds.fullName(manifest) + " with artifact, relationships & moniker...");
      annotate(manifest);
    }
    task.updateStatus(PHASE, "Checking if all requested artifacts were bound...");
    var result = new Result();
    for (var manifest : manifests) {
      task.updateStatus(PHASE, "Finding deployer for " + Kinds.text(manifest) + "...");
      task.updateStatus(PHASE, "Submitting manifest " + Kinds.fullName(manifest) + " to kubernetes master...");
      submit(manifest, result);
      task.updateStatus(
          PHASE, "Deploy manifest task completed successfully for manifest " + Kinds.fullName(manifest) + where);
    }
    task.updateStatus(PHASE, "Deploy manifest task completed successfully for all manifests" + where);
    return result;
  }

  private void annotate(ObjectNode manifest) {
    var override = description.path("namespaceOverride").asText("");
    ObjectNode metadata = manifest.with("metadata");
    if (!override.isEmpty()) {
      metadata.put("namespace", override);
    }
    var kind = Kinds.text(manifest);
    var application = description.at("/moniker/app").asText();
    var parts = new ArrayList<ObjectNode>();
    parts.add(metadata);
    if (manifest.at("/spec/template").isObject()) {
      parts.add(((ObjectNode) manifest.at("/spec/template")).with("metadata"));
    }
    for (var part : parts) {
      ObjectNode annotations = part.with("annotations");
      annotations.put("artifact.spinnaker.io/location", metadata.path("namespace").asText(""));
      if (metadata.has("name")) {
        annotations.put("artifact.spinnaker.io/name", metadata.path("name").asText());
      }
      annotations.put("artifact.spinnaker.io/type", "kubernetes/" + kind);
      annotations.put("artifact.spinnaker.io/version", "");
      annotations.put("moniker.spinnaker.io/application", application);
      annotations.put("moniker.spinnaker.io/cluster", Kinds.fullName(manifest));
      part.with("labels").put("app.kubernetes.io/managed-by", "spinnaker").put("app.kubernetes.io/name", application);
    }
  }

  private void submit(ObjectNode manifest, Result result) throws Exception {
    var fullName = Kinds.fullName(manifest);
    var verb = manifest.path("metadata").has("name") ? "apply" : "create";
    JsonNode deployed;
    try {
      deployed = MAPPER.readTree(kubectl.run(account, null, manifest.toString(), verb, "-o", "json", "-f", "-"));
    } catch (Kubectl.Failed failed) {
      throw new Kubectl.Failed("Deploy failed for manifest: " + fullName + ". Error: " + failed.getMessage());
    }
    var namespace = deployed.at("/metadata/namespace").asText("");
    var name = deployed.at("/metadata/name").asText();
    result.name(namespace, Kinds.fullName(deployed));
    result.manifests.add(deployed);
    result.createdArtifacts.add(
        Map.of(
            "customKind", false,
            "location", namespace,
            "metadata", Map.of("account", account.getName()),
            "name", name,
            "reference", name,
            "type", "kubernetes/" + Kinds.text(deployed),
            "version", ""));
  }
}
