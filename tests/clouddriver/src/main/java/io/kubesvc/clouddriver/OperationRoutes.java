package io.kubesvc.clouddriver;

import com.fasterxml.jackson.databind.JsonNode;
import com.netflix.spinnaker.clouddriver.data.task.InMemoryTaskRepository;
import com.netflix.spinnaker.clouddriver.data.task.Task;
import com.netflix.spinnaker.clouddriver.data.task.TaskRepository;
import com.netflix.spinnaker.credentials.CredentialsRepository;
import com.netflix.spinnaker.credentials.definition.CredentialsLoader;
import com.netflix.spinnaker.kork.web.exceptions.InvalidRequestException;
import com.netflix.spinnaker.kork.web.exceptions.NotFoundException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.PathVariable;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestBody;
import org.springframework.web.bind.annotation.RequestParam;
import org.springframework.web.bind.annotation.RestController;

/** Operations and their tasks, and what a test asks for. */
@RestController
class OperationRoutes {
  private final TaskRepository tasks = new InMemoryTaskRepository();
  private final ExecutorService workers = Executors.newFixedThreadPool(8);
  private final CredentialsRepository<KubernetesAccount> loaded;
  private final CredentialsLoader<KubernetesAccount> loader;
  private final Kubectl kubectl;

  OperationRoutes(CredentialsLoader<KubernetesAccount> loader, Kubectl kubectl) {
    this.loaded = loader.getCredentialsRepository();
    this.loader = loader;
    this.kubectl = kubectl;
  }

  @GetMapping("/health")
  Map<String, String> health() {
    return Map.of("status", "UP");
  }

  /** A request with the id of an earlier one is that one. */
  @PostMapping("/kubernetes/ops")
  synchronized Map<String, String> run(
      @RequestBody List<Map<String, JsonNode>> request, @RequestParam(required = false) String clientRequestId) {
    var operations = new ArrayList<Operation>();
    request.forEach(named -> named.forEach((name, description) -> operations.add(operation(name, description))));
    var id = clientRequestId == null ? UUID.randomUUID().toString() : clientRequestId;
    var task = tasks.getByClientRequestId(id);
    if (task == null) {
      task = tasks.create("ORCHESTRATION", "Initializing Orchestration Task", id);
      var begun = task;
      workers.execute(() -> run(operations, begun));
    }
    return Map.of("id", task.getId(), "resourceUri", "/task/" + task.getId());
  }

  @GetMapping({"/task/{id}", "/kubernetes/task/{id}"})
  Task task(@PathVariable String id) {
    var task = tasks.get(id);
    if (task == null) {
      throw new NotFoundException("task not found (id: " + id + ")");
    }
    return task;
  }

  /** For tests alone, as all below /test: loads accounts as the poller does. */
  @PostMapping("/test/load")
  void load() {
    loader.load();
  }

  /** For tests alone: lists what an account's caching agents would cache. */
  @PostMapping("/test/cache/{account}")
  List<Map<String, String>> cache(@PathVariable String account) throws Exception {
    return new CachingCycle(account(account), kubectl).run();
  }

  private Operation operation(String name, JsonNode description) {
    var account = account(description.path("account").asText());
    switch (name) {
      case "deployManifest":
        return new DeployManifest(account, description, kubectl);
      case "deleteManifest":
        return new DeleteManifest(account, description, kubectl);
      default:
        throw new InvalidRequestException("no operation " + name + " in what stands in for Clouddriver");
    }
  }

  private KubernetesAccount account(String name) {
    var account = loaded.getOne(name);
    if (account == null) {
      throw new InvalidRequestException("credentials not found (name: " + name + ")");
    }
    return account;
  }

  private static void run(List<Operation> operations, Task task) {
    String running = "";
    try {
      for (var operation : operations) {
        running = "Kubernetes" + operation.getClass().getSimpleName() + "Operation";
        task.updateStatus("ORCHESTRATION", "Processing op: " + running);
        task.addResultObjects(List.of(operation.run(task)));
        task.updateStatus("ORCHESTRATION", "Orchestration completed.");
      }
      task.complete();
    } catch (Exception problem) {
      var what = problem instanceof Kubectl.Failed ? "KubectlException" : problem.getClass().getSimpleName();
      task.updateStatus(
          "ORCHESTRATION", "Orchestration failed: " + running + " | " + what + ": [" + problem.getMessage() + "]");
      task.fail();
    }
  }
}
